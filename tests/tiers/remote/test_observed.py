"""What a remote tier tells of itself: a probe's result, when calls began, why records left."""

import os
import queue
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from tests.disk_harness import fill_up, small_file_system
from tests.remote_harness import (
    PATIENT,
    SHARING,
    damage_payloads,
    open_remote,
    opened_remote,
    packs_in,
)

from forebay.record.region import short
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.conformance import load, store
from forebay.testing.conformance.hooks import HANG_S, eventually
from forebay.testing.outcomes import Outcomes, RecordingListener
from forebay.testing.samples import Sample, chain, single
from forebay.tiers.contract import Dropped, EvictionCause, Hit, Stored, VolumeProbe
from forebay.tiers.remote.process.link import Link
from forebay.tiers.remote.tier import RemoteTier

ROOT: Final = Path(__file__).parent.parent.parent.parent
PROBE: Final = "hosts/a/probe"  # the object that a probe writes


def begin_probe(tier: RemoteTier) -> "queue.SimpleQueue[VolumeProbe]":
    told: queue.SimpleQueue[VolumeProbe] = queue.SimpleQueue()
    assert tier.probe(told.put) == 1
    return told


def probe(tier: RemoteTier) -> str:
    volume, failure = begin_probe(tier).get(timeout=HANG_S)
    assert volume == 0
    return failure


def child_of(tier: RemoteTier) -> int:
    pid = tier.parts.link.pid
    assert pid is not None
    return pid


def causes(listener: RecordingListener) -> dict[bytes, EvictionCause]:
    return {gone.key: gone.cause for gone in listener.gone}


def left(*samples: Sample, cause: EvictionCause) -> dict[bytes, EvictionCause]:
    return {short(sample.name.key): cause for sample in samples}


def test_a_probe_is_put_read_and_deleted_and_no_host_lists_it(tmp_path: Path) -> None:
    with opened_remote(tmp_path) as tier:
        eventually(lambda: (tmp_path / "hosts/a/tail").exists() and tier.upkeep.is_idle)
        before = {path for path in tmp_path.rglob("*") if path.is_file()}
        assert probe(tier) == ""
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
        # A directory cannot be replaced by an object: the probe does go to the store.
        (tmp_path / PROBE).mkdir()
        assert probe(tier) == "io_error"
        assert tier.volumes()[0].errors > 0
        (tmp_path / PROBE).rmdir()
        assert probe(tier) == ""
    assert packs_in(tmp_path) == []


def test_a_probe_beside_a_stopped_child_is_alone_and_ends_with_it(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    with opened_remote(tmp_path, world=World(clock=clock)) as tier:
        eventually(lambda: tier.upkeep.is_idle)
        os.kill(child_of(tier), signal.SIGSTOP)
        first = begin_probe(tier)
        assert probe(tier) == "busy"
        os.kill(child_of(tier), signal.SIGKILL)
        assert first.get(timeout=HANG_S).failure in {"io_error", "tier_off"}
        eventually(lambda: not tier.parts.link.is_running)
        assert probe(tier) == "tier_off"
        clock.advance(PATIENT.probe_interval_s)
        eventually(lambda: tier.volumes()[0].is_on)
        assert probe(tier) == ""
    assert probe(tier) == "tier_off", "it is closed"


def test_a_probe_that_waits_is_answered_when_the_tier_is_closed(tmp_path: Path) -> None:
    tier = open_remote(tmp_path)
    eventually(lambda: tier.upkeep.is_idle)
    os.kill(child_of(tier), signal.SIGSTOP)
    told = begin_probe(tier)
    tier.close(0.0)
    assert told.get(timeout=HANG_S).failure in {"io_error", "tier_off"}


def test_a_probe_of_a_full_store_says_so(tmp_path: Path) -> None:
    place = tmp_path / "small"
    with small_file_system(place, 2 << 20), opened_remote(place) as tier:
        eventually(lambda: tier.upkeep.is_idle)
        fill_up(place / "hog")
        assert probe(tier) == "no_space"
        assert tier.volumes()[0].is_on
        (place / "hog").unlink()
        assert probe(tier) == ""


def test_a_probe_finds_what_is_wrong_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    flipping = partial(Link, module="tests.flipping_child")
    monkeypatch.setattr("forebay.tiers.remote.tier.Link", flipping)
    with opened_remote(tmp_path) as tier:
        assert store(tier, single("sound")) == Stored()
        for failure in ("corrupt", "absent"):
            assert probe(tier) == failure
            assert not (tmp_path / PROBE).exists()
        assert tier.volumes()[0].errors == 1, "only what is gone is an error"


def test_calls_say_when_they_began_and_records_when_they_were_used(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    options = replace(PATIENT, pack_age_s=10.0, pack_records_max=2)
    sample = single("timed")
    with opened_remote(tmp_path, options=options, world=World(clock=clock)) as tier:
        outcomes = Outcomes(tier)
        outcomes.store(single("waits with it"))
        eventually(lambda: bool(tier._writing._gathering))
        clock.advance(5.0)
        stored = store(tier, sample)
        assert stored.begun == 1005.0, "when its pack was put"
        assert store(tier, sample).begun is None, "it is there: nothing was begun"
        clock.advance(5.0)
        tier.used(sample.name.key, 1007.0)
        for begun, used_at in ((1010.0, 1007.0), (1010.0, 1010.0)):
            found, _ = load(tier, sample)
            assert isinstance(found, Hit)
            assert (found.begun, found.used_at) == (begun, used_at)
        (tmp_path / "packs").rename(tmp_path / "elsewhere")
        (tmp_path / "packs").touch()
        clock.advance(1.0)
        failing = Outcomes(tier)
        failing.store(single("refused"))
        eventually(lambda: bool(tier._writing._gathering))
        refused = store(tier, single("refused with it"))
        assert isinstance(refused, Dropped)
        assert refused.begun == 1011.0
        (tmp_path / "packs").unlink()
        (tmp_path / "elsewhere").rename(tmp_path / "packs")


def test_records_that_leave_say_why_and_since_when_they_were_there(tmp_path: Path) -> None:
    clock, listener = ManualClock(1000.0), RecordingListener()
    with opened_remote(tmp_path, listener=listener, world=World(clock=clock)) as tier:
        old, damaged, (head, tail) = single("old"), single("damaged"), chain("chain", [5000] * 2)
        store(tier, old)
        clock.advance(7.0)
        fillers = [single(f"filler {n}", 60_000) for n in range(100)]
        stored = iter(fillers)
        while tier.has(old.name.key):
            assert store(tier, next(stored)) == Stored()
        eventually(lambda: bool(listener.gone))
        assert listener.gone[0].cause is EvictionCause.SPACE
        assert (listener.gone[0].key, listener.gone[0].stored_at) == (short(old.name.key), 1000.0)
        assert all(gone.cause is EvictionCause.SPACE for gone in listener.gone)
        listener.gone.clear()
        assert tier.resize(f"file://{tmp_path}", 1 << 20)
        assert {gone.cause for gone in listener.gone} == {EvictionCause.RESIZED}
        assert {gone.stored_at for gone in listener.gone} == {1007.0}
        tier.erase(None)
        listener.gone.clear()
        for sample in (damaged, head, tail):
            store(tier, sample)
        damage_payloads(tmp_path)
        load(tier, damaged)
        load(tier, head)
        assert causes(listener) == {
            **left(damaged, head, cause=EvictionCause.DAMAGED),
            **left(tail, cause=EvictionCause.PREFIX),
        }
        listener.gone.clear()
        tier.erase(None)
        cleared, deleted = single("cleared"), single("deleted")
        store(tier, cleared)
        tier.erase(None)
        store(tier, deleted)
        for path in packs_in(tmp_path):
            path.unlink()
        load(tier, deleted)
        assert causes(listener) == left(cleared, deleted, cause=EvictionCause.CLEARED)


def test_records_of_another_host_that_are_not_to_be_had_say_why(tmp_path: Path) -> None:
    listener = RecordingListener()
    gone, damaged = single("gone"), single("damaged")
    with (
        opened_remote(tmp_path, "a", options=SHARING) as writer,
        opened_remote(tmp_path, "b", options=SHARING, listener=listener) as reader,
    ):
        store(writer, gone)
        (first,) = packs_in(tmp_path)
        store(writer, damaged)
        eventually(lambda: reader.has(gone.name.key) and reader.has(damaged.name.key))
        damage_payloads(tmp_path)
        first.unlink()
        load(reader, gone)
        load(reader, damaged)
        assert causes(listener) == {
            **left(gone, cause=EvictionCause.SPACE),
            **left(damaged, cause=EvictionCause.DAMAGED),
        }
        assert reader.namespaces() == {}
