"""The metric `healthy` follows what a check of health finds, and a scrape alone has it checked."""

import json
from http import HTTPStatus

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.pool_process import HANG_S, serving, short_directory, wait_until, with_disk

from forebay.observe.http import HttpRequest, HttpResponse
from forebay.observe.observer import Observer
from forebay.sys.clock import Clock
from forebay.sys.world import World
from forebay.testing.faultdisk import FaultDisk

LONG_S = 3 * HANG_S  # a check that a busy machine was late for is made again, half a minute later
Healths = dict[tuple[str, str], float]


def get(observer: Observer, path: str) -> HttpResponse:
    return observer.answer(HttpRequest("GET", path, {}, {}))


def scraped(observer: Observer) -> Healths:
    """By tier and volume."""
    text = get(observer, "/metrics").body.decode()
    return {
        (sample.labels["tier"], sample.labels["volume"]): sample.value
        for found in text_string_to_metric_families(text)
        for sample in found.samples
        if sample.name == "forebay_healthy"
    }


@pytest.mark.slow  # what a check found holds for some seconds
def test_a_drive_that_fails_is_unhealthy_in_metrics() -> None:
    disk = FaultDisk()
    with (
        short_directory() as place,
        serving(place, with_disk(place), world=World(disk, Clock())) as service,
    ):
        observer = Observer(service)
        well: Healths = {("socket", "0"): 1, ("dram", "0"): 1, ("disk", "0"): 1}
        wait_until(lambda: scraped(observer) == well, "a check after the first scrape", LONG_S)
        disk.arm("read+write:errno=EIO")
        wait_until(
            lambda: get(observer, "/healthz").status == HTTPStatus.SERVICE_UNAVAILABLE,
            "health to fail",
            LONG_S,
        )
        unwell = {**well, ("disk", "0"): 0}
        wait_until(lambda: scraped(observer) == unwell, "the metric to say so", LONG_S)
        stats = json.loads(get(observer, "/stats.json").body)
        assert [{"tier": "disk", "volume": "0"}, 0] in stats["metrics"]["healthy"]["values"]
        disk.disarm()
