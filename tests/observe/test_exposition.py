"""/metrics: read with Prometheus' own parser, and held against what a client really did."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests import pool_process
from tests.pool_process import HANG_S, PatientClient, PoolProcess, exact, made, wait_until

from forebay.metrics.catalog import PoolMetrics
from forebay.metrics.reading import count
from forebay.metrics.registry import exposed_name
from forebay.observe.exposition import Exposition, written_anew
from forebay.pool.client import Known

LENGTH = 100_000
COUNT = 4
FLAGS = ("--metrics-address", "127.0.0.1:0", "--disk-rated-life", "600TB")
# What changes without anybody's doing, or because somebody looks.
OF_ITSELF = {"uptime_seconds", "scrapes", "connections", "connections_accepted", "engines"}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def place() -> Iterator[Path]:
    with pool_process.short_directory() as path:
        yield path


def get(pool: PoolProcess, path: str) -> str:
    with urllib.request.urlopen(pool.url() + path, timeout=HANG_S) as answer:
        return str(answer.read().decode())


def scraped(pool: PoolProcess) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(get(pool, "/metrics")):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"forebay_{name}", tuple(sorted(labels.items()))]


def test_metrics_are_what_a_client_did(place: Path) -> None:
    chunks, chain = made("known", COUNT, LENGTH)
    _, absent = made("absent", 3, LENGTH)
    with pool_process.running_pool(place, *FLAGS) as pool:
        with PatientClient(pool.socket) as client:
            assert client.store(chain, [chunk.payload for chunk in chunks]).stored == COUNT
            assert client.lookup(absent) == Known(0, 0)
            with client.load(chain) as loaded:
                assert exact(loaded, chunks)
        wait_until(lambda: pool.number("chunks", tier="disk") == COUNT, "writing behind")
        wait_until(lambda: not pool.number("pinned_chunks"), "the release")
        wait_until(lambda: value(scraped(pool), "chunks", tier="disk") == COUNT, "a fresh snapshot")
        _check_first_life(scraped(pool), chain.namespace.hex()[:16])
        assert pool.stop() == 0
        pool.start()
        with PatientClient(pool.socket) as client:
            assert client.lookup(chain) != Known(0, 0)
            with client.load(chain) as loaded:
                assert exact(loaded, chunks)
        way = {"tier": "disk", "direction": "load"}
        wait_until(lambda: pool.number("operations", **way, outcome="ok") == COUNT, "the loads")
        wait_until(
            lambda: value(scraped(pool), "operation_seconds_count", **way) == COUNT, "a snapshot"
        )
        found = scraped(pool)
        assert value(found, "moved_bytes_total", **way) == COUNT * LENGTH
        assert value(found, "queue_wait_seconds_count", **way) == COUNT
        assert value(found, "lookup_chunks_total", found="disk") >= COUNT


def _check_first_life(found: Samples, namespace: str) -> None:
    for direction in ("store", "load"):
        way = {"tier": "dram", "direction": direction}
        assert value(found, "operations_total", **way, outcome="ok") == COUNT
        assert value(found, "moved_bytes_total", **way) == COUNT * LENGTH
        assert value(found, "operation_bytes_count", **way) == COUNT
        assert value(found, "operation_bytes_sum", **way) == COUNT * LENGTH
        assert value(found, "operation_seconds_count", **way) == COUNT
    assert value(found, "lookups_total") == value(found, "lookup_seconds_count") == 2
    assert value(found, "lookup_chunks_total", found="dram") == COUNT
    assert value(found, "lookup_chunks_total", found="absent") == 3
    assert value(found, "promises_total") == value(found, "promise_seconds_count") == 1
    assert value(found, "leases_total") == COUNT
    assert value(found, "gap_at_reuse_seconds_count", tier="dram") == COUNT
    for tier in ("dram", "disk"):
        named = {"tier": tier, "namespace": namespace, "model": ""}
        assert value(found, "namespace_chunks", **named) == COUNT
        assert value(found, "namespace_bytes", **named) == COUNT * LENGTH
    way = {"tier": "disk", "direction": "store"}
    assert value(found, "operations_total", **way, outcome="ok") == COUNT
    assert value(found, "operation_seconds_count", **way) == COUNT
    assert value(found, "queue_wait_seconds_count", **way) == COUNT
    written = value(found, "written_bytes_total", tier="disk", volume="0")
    assert written >= COUNT * LENGTH
    assert value(found, "write_budget_used_bytes", tier="disk") == written
    assert value(found, "rated_life_bytes", tier="disk") == 600e12
    assert value(found, "life_written_bytes", tier="disk", volume="0") >= written
    assert value(found, "volume_on", tier="disk", volume="0") == 1
    assert not any(of for (name, _), of in found.items() if name == "forebay_errors_total")
    assert not any(of for (name, _), of in found.items() if name == "forebay_evictions_total")


def test_text_json_and_catalogue_agree(place: Path) -> None:
    chunks, chain = made("known", COUNT, LENGTH)
    with pool_process.running_pool(place, *FLAGS, "--disk-writes-a-day", "9TB") as pool:
        with PatientClient(pool.socket) as client:
            client.store(chain, [chunk.payload for chunk in chunks])
        wait_until(lambda: pool.number("connections") == 1, "the client to be gone")
        wait_until(lambda: value(scraped(pool), "leases_total") == COUNT, "a fresh snapshot")
        text = get(pool, "/metrics")
        stats: dict[str, Any] = json.loads(get(pool, "/stats.json"))
        assert json.loads(get(pool, "/requests.json?last=5")) == []
        assert stats["pid"] == pool.pid
        assert stats["tiers"][0]["chunks"] == COUNT
        assert count(stats, "write_budget_bytes", tier="disk") == 9 * 10**12
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in PoolMetrics().definitions():
        family = families.pop(exposed_name(metric).removesuffix("_total"), None)
        if family is None:
            assert not stats["metrics"][metric.name]["values"], metric.name
            continue
        assert family.documentation == metric.doc
        assert family.type == metric.kind
        if metric.name not in OF_ITSELF:
            ends = ("_total", "_count", metric.name)
            samples = [each.value for each in family.samples if each.name.endswith(ends)]
            assert sum(samples) == count(stats, metric.name), metric.name
    assert not families, "each is in the catalogue"


def test_text_that_is_written_again_is_what_the_library_writes() -> None:
    """Only numbers were replaced since, and the text has them all."""
    metrics, exposition = PoolMetrics(("disk",)), Exposition()
    definitions = {each.name: each for each in metrics.definitions()}
    for number in range(4):
        names = [f'odd " \\ \n {each}' for each in range(1 + number // 2)]
        metrics.held.namespace_bytes.replace({("dram", name, name): 2.5e9 for name in names})
        metrics.loads.lookups.add(10.0 ** (6 * number))
        metrics.tiers.seconds.observe(10.0**-number, ("disk", "load"), 3)
        metrics.server.uptime.set(0.1 + number * 1e7)
        stats = {"metrics": metrics.snapshot()}
        anew = "".join(
            written_anew(definitions[name], family["values"])
            for name, family in stats["metrics"].items()
            if family["values"]
        )
        assert exposition.text(stats).decode() == anew


def test_a_label_with_an_odd_line_break_is_written_twice_alike() -> None:
    """Prometheus knows one end of a line; a model's name may hold the others."""
    metrics, exposition = PoolMetrics(), Exposition()
    metrics.server.engines.replace({("a\rb\u2028c\x85d",): 1})
    stats = {"metrics": metrics.snapshot()}
    assert exposition.text(stats) == exposition.text(stats)
