"""Health: a record through every tier and back; who fails it, and that it disturbs nobody."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from tests import pool_process
from tests.pool_process import DRAM_BYTES, HANG_S, PatientClient, exact, made

from forebay.metrics.reading import count
from forebay.observe.health import SOCKET, HealthCheck, HealthReport
from forebay.observe.http import HttpRequest
from forebay.observe.observer import Observer
from forebay.pool.client import Known
from forebay.pool.service import Service
from forebay.pool.session import ProbeTold
from forebay.sys.world import World
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.faults import parse_fault
from forebay.tiers.dram.slab import slot_bytes_for

WELL = {"dram": "", "disk": "", SOCKET: ""}


@contextmanager
def watched() -> Iterator[tuple[Service, FaultDisk, Path]]:
    disk = FaultDisk()
    with (
        pool_process.short_directory() as place,
        pool_process.serving(
            place, pool_process.with_disk(place), world=World(disk=disk)
        ) as service,
    ):
        try:
            yield service, disk, place
        finally:
            disk.disarm()  # what hangs goes on


def found_by(service: Service, bound_s: float = HANG_S) -> dict[str, str]:
    report = HealthCheck(service, service.address.path, bound_s).report()
    assert report.is_well == (not any(check["why"] for check in report.checks))
    return {check["tier"]: check["why"] for check in report.checks}


def test_a_record_comes_back_from_every_tier_and_nothing_is_left() -> None:
    with watched() as (service, _, place):
        before = service.stats(HANG_S)
        assert found_by(service) == WELL
        after = service.stats(HANG_S)
        assert before is not None
        assert after is not None
        for name in ("chunks", "used_bytes", "lookups", "operations", "evictions", "pinned_chunks"):
            assert count(before, name) == count(after, name), name
        assert after["namespaces"] == []
        assert not (place / "disk" / "lock").read_bytes().strip(b"\0"), "wiped"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("read:errno=EIO", "io_error"),
        ("write:errno=EIO", "io_error"),
        ("write:errno=ENOSPC", "no_space"),
        ("read:flip=1", "corrupt"),
    ],
)
def test_a_drive_that_fails_is_named(fault: str, why: str) -> None:
    with watched() as (service, disk, _):
        disk.arm(parse_fault(fault))
        assert found_by(service) == {**WELL, "disk": why}
        disk.disarm()
        assert found_by(service) == WELL


def test_a_drive_that_hangs_is_late_and_then_busy() -> None:
    with watched() as (service, disk, _):
        disk.arm(parse_fault("write:hang"))
        assert found_by(service, 1.0)["disk"] == "not done within 1 s"
        assert found_by(service)["disk"] in {"busy", "tier_off"}, "one probe at a time"
        stats = service.stats(HANG_S)
        assert stats is not None, "nobody else waits for it"


def test_where_dram_is_full_a_chunk_is_verified_and_none_leaves() -> None:
    length = 100_000
    chunks, chain = made("full", DRAM_BYTES // slot_bytes_for(length) // 2, length)
    with watched() as (service, _, _), PatientClient(service.address.path) as client:
        pool = service._pool
        client.store(chain, [chunk.payload for chunk in chunks])
        while pool_free(service):
            taken = service._server.call(lambda: pool._slab.take(4096), HANG_S)
            assert taken is not None
        assert found_by(service) == WELL
        assert client.lookup(chain) == Known(len(chunks), len(chunks)), "all are still there"
        with client.load(chain) as loaded:
            assert exact(loaded, chunks[: len(loaded.chunks)] if hasattr(loaded, "chunks") else [])


def pool_free(service: Service) -> bool:
    """Whether a page of DRAM is free; it is given back."""

    def look() -> bool:
        slab = service._pool._slab
        offset = slab.take(4096)
        if offset is not None:
            slab.give(offset)
        return offset is not None

    return bool(service._server.call(look, HANG_S))


def test_the_answer_says_what_is_wrong() -> None:
    with watched() as (service, disk, _):
        observer = Observer(service)
        observer._health = HealthCheck(service, service.address.path, HANG_S, 0.0)
        request = HttpRequest("GET", "/healthz", {}, {})
        assert observer.answer(request).status == HTTPStatus.OK
        disk.arm(parse_fault("read:errno=EIO"))
        answer = observer.answer(request)
        assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE
        told = {check["tier"]: check for check in json.loads(answer.body)["checks"]}
        assert told["disk"] == {"tier": "disk", "volume": 0, "ok": False, "why": "io_error"}
        ready = observer.answer(HttpRequest("GET", "/readyz", {}, {}))
        assert ready.status == HTTPStatus.OK, "it serves without the drive"


def test_a_pool_that_stands_still_is_neither_well_nor_ready() -> None:
    with pool_process.short_directory() as place:
        settings = pool_process.with_disk(place)

        def look(service: Service) -> None:
            """Its thread has not begun."""
            found = HealthCheck(service, service.address.path, 0.1).report()
            assert [check["why"] for check in found.checks] == ["the pool's thread does not answer"]
            assert service.stats(0.1) is None

        with pool_process.serving(place, settings, before=look) as service:
            assert found_by(service) == WELL


class StuckPool:
    """A pool whose thread does not answer; how often it was asked. Any thread may ask."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = threading.Event()

    def probe(self, _told: ProbeTold, _timeout_s: float) -> list[tuple[str, int]] | None:
        self.asked += 1
        self.may_answer.wait(HANG_S)
        return None


def test_who_waits_for_a_check_that_fails_does_not_begin_another() -> None:
    """Several ask at once; the check takes as long as it likes, and what it found holds."""
    pool, found = StuckPool(), list[HealthReport]()
    health = HealthCheck(pool, "nowhere", bound_s=HANG_S, holds_s=HANG_S)
    waiting = [
        threading.Thread(target=lambda: found.append(health.report()), daemon=True)
        for _ in range(8)
    ]
    for each in waiting:
        each.start()
    pool_process.wait_until(lambda: pool.asked, "the first one")
    pool.may_answer.set()
    for each in waiting:
        each.join(HANG_S)
    assert [report.is_well for report in found] == [False] * 8
    assert pool.asked == 1


def test_what_was_found_holds_from_the_end_of_a_check() -> None:
    pool, found = StuckPool(), list[HealthReport]()
    health = HealthCheck(pool, "nowhere", bound_s=HANG_S)
    waits = threading.Thread(target=lambda: found.append(health.report()), daemon=True)
    waits.start()
    pool_process.wait_until(lambda: pool.asked, "the check to begin")
    before_end = time.monotonic()
    pool.may_answer.set()
    waits.join(HANG_S)
    assert found[0].at >= before_end


def test_who_waits_in_vain_hears_that_a_check_goes_on() -> None:
    pool = StuckPool()
    health = HealthCheck(pool, "nowhere", bound_s=0.0, holds_s=HANG_S)
    first = threading.Thread(target=health.report, daemon=True)
    first.start()
    pool_process.wait_until(lambda: pool.asked, "the first one")
    assert [check["why"] for check in health.report().checks] == [
        "a check goes on and has not ended in time"
    ]
    pool.may_answer.set()
    first.join(HANG_S)
    assert pool.asked == 1


def test_that_a_pool_did_not_answer_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of those who wait would wait for it anew, one after the other."""
    monkeypatch.setattr("forebay.observe.observer.FRESH_S", HANG_S)
    monkeypatch.setattr("forebay.observe.observer.ANSWER_S", 0.01)
    with pool_process.short_directory() as place:
        settings = pool_process.with_disk(place)
        observers: list[Observer] = []

        def look(service: Service) -> None:
            """Its thread has not begun."""
            observers.append(Observer(service))
            assert observers[0].stats() is None

        with pool_process.serving(place, settings, before=look) as service:
            assert service.stats(HANG_S) is not None
            assert observers[0].stats() is None, "as it was found, for as long as that holds"
