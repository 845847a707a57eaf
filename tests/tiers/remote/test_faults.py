"""Whatever a store or its process does: exact or a miss, and the tier comes back by itself."""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disk_harness import fill_up, small_file_system
from tests.remote_harness import (
    PATIENT,
    damage_payloads,
    flip,
    open_remote,
    opened_remote,
    packs_in,
    write_pack,
)

from forebay.errors import DirectoryError, SettingsError, StartupError
from forebay.record.header import Damage
from forebay.sys import memory
from forebay.sys.processes import ChildProcess
from forebay.sys.shared import SharedMemory
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.conformance import keys, load, store
from forebay.testing.conformance.hooks import eventually
from forebay.testing.outcomes import FOREVER, Outcomes
from forebay.testing.samples import NAMESPACE, chain, single
from forebay.tiers.contract import (
    Dropped,
    DropReason,
    Hit,
    LoadOutcome,
    Miss,
    MissReason,
    Stored,
)
from forebay.tiers.remote.jobs import Inbox, RemoteLoad, RemoteStore
from forebay.tiers.remote.packs import PackPlace
from forebay.tiers.remote.process.link import Link
from forebay.tiers.remote.process.messages import Action, StoreRequest
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.remote.tier import RemoteTier

ROOT = Path(__file__).parent.parent.parent.parent


def child_of(tier: RemoteTier) -> int:
    pid = tier.parts.link.pid
    assert pid is not None
    return pid


def is_on(tier: RemoteTier) -> bool:
    return tier.volumes()[0].is_on


def come_back(tier: RemoteTier, clock: ManualClock) -> None:
    """Time passes until the store has been probed."""
    eventually(lambda: not tier.parts.link.is_running)
    clock.advance(PATIENT.probe_interval_s)
    eventually(lambda: is_on(tier))


class Waiting:
    """A load or a store that is submitted now and answered later."""

    def __init__(self, submit: Callable[[Callable[[object], None]], None]) -> None:
        self._ended = threading.Event()
        self._outcome: list[object] = []
        submit(self._done)

    def _done(self, outcome: object) -> None:
        self._outcome.append(outcome)
        self._ended.set()

    @property
    def is_answered(self) -> bool:
        return self._ended.is_set()

    def outcome(self) -> object:
        assert self._ended.wait(60)
        return self._outcome[0]


@pytest.mark.parametrize("end", ["killed", "late"])
def test_t25_t61_a_stopped_child_costs_a_miss_and_a_new_one_is_started(
    tmp_path: Path, end: str
) -> None:
    clock = ManualClock(1000.0)
    here, new = single("here"), single("new")
    with opened_remote(tmp_path, world=World(clock=clock)) as tier:
        store(tier, here)
        eventually(lambda: tier.upkeep.is_idle)
        os.kill(child_of(tier), signal.SIGSTOP)
        target, source = memory.allocate(5000), memory.allocate(5000)
        source[:5000] = new.payload
        loading = Waiting(lambda done: tier.submit_load(here.name, target, done, FOREVER))
        storing = Waiting(lambda done: tier.submit_store(new.name, source, 5000, done))
        eventually(lambda: tier.usage().used_bytes > 2 * 16384)
        assert not loading.is_answered
        assert not storing.is_answered, "its buffer may be in use until the child has exited"
        if end == "killed":
            os.kill(child_of(tier), signal.SIGKILL)
        else:
            clock.advance(PATIENT.put_s)
        assert loading.outcome() == Miss(MissReason.IO_ERROR)
        assert storing.outcome() == Dropped(DropReason.IO_ERROR)
        assert not is_on(tier)
        assert tier.prefix([here.name.key]).chunks == 0
        assert tier.length_of(here.name.key) is None
        assert load(tier, here)[0] == Miss(MissReason.TIER_OFF)
        assert store(tier, new) == Dropped(DropReason.TIER_OFF)
        come_back(tier, clock)
        assert load(tier, here) == (Hit(5000), here.payload)
        assert store(tier, new) == Stored()
        assert tier.parts.link.starts == 2


def test_children_killed_at_any_moment_leave_what_was_stored(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    clock = ManualClock(1000.0)
    with opened_remote(tmp_path, world=World(clock=clock), cap_bytes=16 << 20) as tier:
        outcomes = Outcomes(tier)
        for turn in range(5):
            for n in range(20):
                outcomes.store(single(f"killed {turn} {n}", 20_000))
                if n and outcomes.stored:
                    outcomes.load(luck.choice(outcomes.stored))
            for _ in range(luck.randrange(200)):
                if tier.parts.link.pid is None:
                    break
            os.kill(child_of(tier), signal.SIGKILL)
            outcomes.wait(60)
            come_back(tier, clock)
        eventually(lambda: tier.upkeep.is_idle and not tier.parts.own.doomed)
        on_disk = sum(path.stat().st_size for path in packs_in(tmp_path))
        assert tier.usage().used_bytes == on_disk, "what may have been put was deleted"
        for sample in outcomes.stored:
            assert load(tier, sample) == (Hit(20_000), sample.payload)
    with opened_remote(tmp_path, cap_bytes=16 << 20) as tier:
        assert tier.usage().records == len(outcomes.stored)


def test_closing_beside_a_stopped_child_answers_everything(tmp_path: Path) -> None:
    tier = open_remote(tmp_path, options=replace(PATIENT, publish_s=3600.0))
    store(tier, single("one"))
    eventually(lambda: tier.upkeep._is_busy is False)
    os.kill(child_of(tier), signal.SIGSTOP)
    outcomes = Outcomes(tier)
    for n in range(5):
        outcomes.store(single(f"late {n}"))
        outcomes.load(single("one"))
    erasing = threading.Thread(target=tier.erase, args=[bytes(32)])
    erasing.start()
    tier.close(0.0)
    outcomes.wait(60)
    erasing.join(60)
    assert not erasing.is_alive()
    assert tier.erase(None) == 0
    assert len(outcomes.hits) == len(outcomes.stored) == 0


@pytest.mark.parametrize("how", ["garbage", "letters", "unasked", "unsealed", "silent", "deaf"])
def test_a_child_that_says_what_it_cannot_mean_is_killed(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    lying = Link([how], "tests.lying_child")
    assert lying.start()
    answers: list[object] = []
    request = StoreRequest(0, Action.PROBE)
    lying.call(request, FOREVER, lambda answer, results: answers.append((answer.failure, results)))

    def is_over() -> bool:
        lying.receive()
        return lying.has_exited

    eventually(is_over)
    lying.receive()  # it may have exited since
    lying.reap()
    assert answers == [(StoreFailure.FAILED, [])]
    assert not lying.is_running


def test_t27_t61_truncated_swapped_and_foreign_objects_are_misses(tmp_path: Path) -> None:
    samples = [single(f"object {n}", 30_000) for n in range(7)]
    with opened_remote(tmp_path) as tier:
        paths: list[Path] = []
        for sample in samples:
            before = set(packs_in(tmp_path))
            store(tier, sample)
            paths += set(packs_in(tmp_path)) - before
        short, left, right, foreign, longer, pipe, _ = paths
        os.truncate(short, 20_000)
        kept = left.read_bytes()
        left.write_bytes(right.read_bytes())
        right.write_bytes(kept)
        foreign.write_bytes(random.Random(1).randbytes(50_000))
        with longer.open("ab") as file:
            file.write(bytes(1 << 20))
        pipe.unlink()
        os.mkfifo(pipe)
        reasons = [getattr(load(tier, sample)[0], "reason", None) for sample in samples]
        assert reasons == [
            MissReason.CORRUPT,
            MissReason.WRONG_RECORD,
            MissReason.WRONG_RECORD,
            MissReason.CORRUPT,
            None,
            MissReason.IO_ERROR,
            None,
        ]
        assert load(tier, samples[4]) == (Hit(30_000), samples[4].payload)
        pipe.unlink()
        pipe.symlink_to("/dev/zero")
        assert load(tier, samples[5])[0] == Miss(MissReason.IO_ERROR), "no end to what it says"
    pipe.unlink()
    with opened_remote(tmp_path) as tier:
        eventually(lambda: not tier.parts.own.unread)
        assert tier.usage().records == 3, "what has not the size that was published is not believed"
        for swapped in samples[1:3]:
            assert isinstance(load(tier, swapped)[0], Miss)
        assert load(tier, samples[6]) == (Hit(30_000), samples[6].payload)
        eventually(lambda: not tier.parts.own.doomed)
        assert tier.usage().used_bytes == sum(path.stat().st_size for path in packs_in(tmp_path))


def test_t27_a_flipped_byte_anywhere_is_exact_or_a_miss(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    links = chain("flipped", [3000, 9000])
    with opened_remote(tmp_path, options=replace(PATIENT, pack_age_s=0.1)) as tier:
        for link_ in links:
            store(tier, link_)
    for path in packs_in(tmp_path):
        for _ in range(2):
            at = luck.randrange(path.stat().st_size)
            flip(path, at)
            with opened_remote(tmp_path, "reader") as tier:
                for link_ in links:
                    outcome, payload = load(tier, link_)
                    assert isinstance(outcome, Miss) or payload == link_.payload
            flip(path, at)


def test_a_full_file_system_drops_stores_and_loads_go_on(tmp_path: Path) -> None:
    place = tmp_path / "small"
    with small_file_system(place, 2 << 20), opened_remote(place, cap_bytes=16 << 20) as tier:
        assert store(tier, single("fits", 60_000)) == Stored()
        eventually(lambda: tier.upkeep.is_idle)
        fill_up(place / "hog")
        for n in range(12):
            assert store(tier, single(f"full {n}", 60_000)) == Dropped(DropReason.NO_SPACE)
        assert load(tier, single("fits", 60_000))[0] == Hit(60_000)
        assert is_on(tier)
        (place / "hog").unlink()
        assert store(tier, single("full 0", 60_000)) == Stored()


def test_t25_a_store_that_cannot_be_reached_is_used_when_it_can(tmp_path: Path) -> None:
    clock, place = ManualClock(1000.0), tmp_path / "mount"
    with opened_remote(place, world=World(clock=clock)) as tier:
        assert not is_on(tier)
        assert store(tier, single("too early")) == Dropped(DropReason.TIER_OFF)
        assert tier.erase(NAMESPACE) == 0
        clock.advance(PATIENT.probe_interval_s)
        eventually(lambda: not tier.parts.breaker.probe_due(clock.monotonic()))
        place.mkdir(0o700)
        (place / "packs").touch()
        clock.advance(PATIENT.probe_interval_s)
        eventually(lambda: not tier.parts.breaker.probe_due(clock.monotonic()))
        assert not is_on(tier), "its own packs cannot be found"
        (place / "packs").unlink()
        clock.advance(PATIENT.probe_interval_s)
        eventually(lambda: is_on(tier))
        assert store(tier, single("in time")) == Stored()


def test_t25_t61_a_store_that_fails_gets_no_stores_then_no_loads_and_comes_back(
    tmp_path: Path,
) -> None:
    clock = ManualClock(1000.0)
    samples = [single(f"fails {n}") for n in range(10)]
    with opened_remote(tmp_path, world=World(clock=clock)) as tier:
        for sample in samples:
            store(tier, sample)
        eventually(lambda: tier.upkeep.is_idle)
        contents = {path: path.read_bytes() for path in packs_in(tmp_path)}
        for path in contents:
            path.unlink()
            path.mkdir()
        for sample in samples[:4]:
            assert load(tier, sample)[0] == Miss(MissReason.IO_ERROR)
        assert store(tier, single("dropped first")) == Dropped(DropReason.TIER_OFF)
        assert is_on(tier)
        for sample in samples[4:8]:
            assert load(tier, sample)[0] == Miss(MissReason.IO_ERROR)
        assert not is_on(tier)
        for path, data in contents.items():
            path.rmdir()
            path.write_bytes(data)
        clock.advance(PATIENT.probe_interval_s)
        eventually(lambda: is_on(tier))
        for sample in samples:
            assert load(tier, sample) == (Hit(5000), sample.payload)


def test_payloads_in_the_slab_are_read_and_written_where_they_are(tmp_path: Path) -> None:
    slab = SharedMemory(1 << 20)
    slab.extend(1 << 18)
    slab.extend(1 << 18)
    sample = single("in place", 9000)
    with opened_remote(tmp_path) as tier:
        tier.attach(slab)
        source, target = slab.view[4096:16384], slab.view[(1 << 18) + 8192 :][:12288]
        source[:9000] = sample.payload
        stored = Waiting(lambda done: tier.submit_store(sample.name, source, 9000, done))
        assert stored.outcome() == Stored()
        loaded = Waiting(lambda done: tier.submit_load(sample.name, target, done, FOREVER))
        assert loaded.outcome() == Hit(9000)
        assert bytes(target[:9000]) == sample.payload
        assert load(tier, sample) == (Hit(9000), sample.payload), "or in memory of another kind"
        again = Waiting(lambda done: tier.submit_load(sample.name, target, done, FOREVER))
        assert again.outcome() == Hit(9000)
        os.truncate(packs_in(tmp_path)[0], 0)
        cut = Waiting(lambda done: tier.submit_load(sample.name, target, done, FOREVER))
        assert cut.outcome() == Miss(MissReason.CORRUPT, Damage.CUT), "not what lay there before"


def test_more_than_may_wait_is_refused(tmp_path: Path) -> None:
    options = replace(PATIENT, read_queue_max=1, write_queue_bytes=6000, publish_s=3600.0)
    with opened_remote(tmp_path, options=options) as tier:
        store(tier, single("one"))
        eventually(lambda: tier.upkeep._is_busy is False)
        os.kill(child_of(tier), signal.SIGSTOP)
        outcomes = Outcomes(tier)
        for _ in range(2):  # one for each lane
            outcomes.load(single("one"))
            eventually(lambda: not tier.parts.inbox._waiting_loads)
        for _ in range(3):
            outcomes.load(single("one"))
        for n in range(3):
            outcomes.store(single(f"waits {n}"))
        os.kill(child_of(tier), signal.SIGCONT)
        outcomes.wait(60)
        assert outcomes.misses == {MissReason.BUSY: 2}
        assert outcomes.dropped == {DropReason.BUSY: 2}


def test_a_pack_is_put_when_it_is_full_or_old(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    options = replace(PATIENT, pack_age_s=10.0, pack_records_max=3)
    with opened_remote(tmp_path, options=options, world=World(clock=clock)) as tier:
        outcomes = Outcomes(tier)
        for link_ in chain("packed", [5000] * 5):
            outcomes.store(link_)
        eventually(lambda: len(outcomes.stored) == 3)
        assert len(packs_in(tmp_path)) == 1
        gathering = tier._writing._gathering
        eventually(lambda: sum(len(pack.jobs) for pack in gathering._open.values()) == 2)
        clock.advance(10.0)
        outcomes.wait(60)
        assert len(packs_in(tmp_path)) == 2
        assert tier.prefix(keys(chain("packed", [5000] * 5))).chunks == 5
        outcomes.store(single("erased while it waits", 6000))
        assert tier.erase(NAMESPACE) == 5
        outcomes.wait(60)
        assert outcomes.dropped == {DropReason.ORPHAN: 1}
        assert packs_in(tmp_path) == []


def test_what_waits_while_its_prefix_leaves_is_not_stored(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    options = replace(PATIENT, pack_age_s=10.0)
    with opened_remote(tmp_path, options=options, world=World(clock=clock)) as tier:
        outcomes = Outcomes(tier)
        for link_ in chain("leaves", [5000] * 2):
            outcomes.store(link_)
        gathering = tier._writing._gathering
        eventually(lambda: sum(len(pack.jobs) for pack in gathering._open.values()) == 2)
        tier.remove(chain("leaves", [5000])[0].name.key)
        clock.advance(10.0)
        outcomes.wait(60)
        assert outcomes.dropped == {DropReason.ORPHAN: 2}


def test_a_cap_that_is_lowered_drops_what_does_not_fit_any_more(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    options = replace(PATIENT, pack_age_s=10.0, pack_bytes=8 << 20)
    with opened_remote(tmp_path, options=options, world=World(clock=clock)) as tier:
        outcomes = Outcomes(tier)
        outcomes.store(single("large", 2 << 20))
        eventually(lambda: bool(tier._writing._gathering))
        assert tier.resize(f"file://{tmp_path}", 1 << 20)
        with pytest.raises(DirectoryError, match="1MiB"):
            tier.resize(f"file://{tmp_path}", 4096)
        clock.advance(10.0)
        outcomes.wait(60)
        assert outcomes.dropped == {DropReason.TOO_LARGE: 1}


def test_what_cannot_be_deleted_counts_and_is_tried_again(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    with opened_remote(tmp_path, world=World(clock=clock)) as tier:
        store(tier, single("stuck"))
        eventually(lambda: tier.upkeep.is_idle)
        path = packs_in(tmp_path)[0]
        path.unlink()
        path.mkdir()  # cannot be unlinked
        assert tier.erase(NAMESPACE) == 0, "eight tries, then the store is left alone"
        assert tier.usage().used_bytes > 0
        path.rmdir()
        clock.advance(PATIENT.probe_interval_s)
        eventually(lambda: tier.usage().used_bytes == 0)


def test_an_index_that_cannot_be_put_is_put_later(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    with opened_remote(tmp_path, world=World(clock=clock)) as tier:
        eventually((tmp_path / "hosts/a/tail").exists)
        tail = tmp_path / "hosts/a/tail"
        eventually(lambda: tier.upkeep.is_idle)
        tail.unlink()
        tail.mkdir()
        (tail / "in the way").touch()
        store(tier, single("untold"))
        eventually(lambda: not is_on(tier))
        (tail / "in the way").unlink()
        tail.rmdir()
        clock.advance(PATIENT.probe_interval_s)
        eventually(tail.is_file)


def test_other_hosts_are_looked_at_and_swept_and_failures_count(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    options = replace(PATIENT, refresh_s=10.0, sweep_s=10.0, errors_max=100)
    with opened_remote(tmp_path, options=options, world=World(clock=clock)) as tier:
        eventually((tmp_path / "hosts/a/tail").exists)
        for host in ("dead", "other"):
            (tmp_path / "hosts" / host).mkdir()
            (tmp_path / "hosts" / host / "tail").write_bytes(b"")
        os.utime(tmp_path / "hosts/dead/tail", (1, 1))
        clock.advance(10.0)
        eventually(lambda: not (tmp_path / "hosts/dead").exists())
        assert (tmp_path / "hosts/other/tail").exists()
        eventually(lambda: tier.upkeep.is_idle)
        tmp_path.chmod(0o777)
        clock.advance(10.0)
        eventually(lambda: tier.volumes()[0].errors >= 2)
        tmp_path.chmod(0o700)


def test_a_pack_that_comes_behind_its_deletion_is_deleted_again(tmp_path: Path) -> None:
    """As where a store carries out a put that was given up."""
    with opened_remote(tmp_path, options=replace(PATIENT, audit_s=0.05)) as tier:
        assert store(tier, single("late")) == Stored()
        (pack,) = packs_in(tmp_path)
        late = pack.read_bytes()
        assert tier.erase(None) == 1
        assert not pack.exists()
        pack.parent.mkdir(parents=True, exist_ok=True)
        pack.write_bytes(late)
        eventually(lambda: not pack.exists())
        assert load(tier, single("late"))[0] == Miss(MissReason.ABSENT)
        eventually(lambda: tier.usage().used_bytes == 0)


def test_a_pack_of_which_nobody_knew_counts_and_is_read(tmp_path: Path) -> None:
    with opened_remote(tmp_path, options=replace(PATIENT, audit_s=0.05)) as tier:
        _, pack = write_pack(tmp_path, 3)
        eventually(lambda: tier.has(single("tiny 2", 1).name.key))
        assert load(tier, single("tiny 2", 1))[0] == Hit(1)
        assert tier.usage().used_bytes >= pack.stat().st_size


def test_no_child_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent")
    with opened_remote(tmp_path) as tier:
        assert not is_on(tier)
        assert store(tier, single("nobody")) == Dropped(DropReason.TIER_OFF)


def test_a_tier_that_cannot_have_its_memory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(12, "no memory")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(StartupError, match="no memory"):
        open_remote(tmp_path)


def test_a_url_that_means_nothing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no cap"):
        RemoteTier.open(f"file://{tmp_path}", "a")


def test_records_that_are_found_to_be_gone_by_two_loads_are_forgotten_once(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    options = replace(PATIENT, pack_age_s=10.0, pack_records_max=2)
    with opened_remote(tmp_path, options=options, world=World(clock=clock)) as tier:
        for label in ("damaged", "deleted"):
            outcomes = Outcomes(tier)
            links = chain(label, [5000] * 2)
            for link_ in links:
                outcomes.store(link_)
            outcomes.wait(60)
            eventually(lambda: tier.upkeep.is_idle)
            (path,) = packs_in(tmp_path)
            if label == "damaged":
                damage_payloads(tmp_path)
            else:
                path.unlink()
            os.kill(child_of(tier), signal.SIGSTOP)
            for _ in range(2):
                outcomes.load(links[0])
            eventually(lambda: not tier._reading._lanes)
            os.kill(child_of(tier), signal.SIGCONT)
            outcomes.wait(60)
            assert sum(outcomes.misses.values()) == 2
            assert not tier.has(links[0].name.key)
            tier.erase(None)


def test_a_child_that_never_exits_keeps_its_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = open_remote(tmp_path)
    store(tier, single("one"))
    eventually(lambda: tier.upkeep.is_idle)
    os.kill(child_of(tier), signal.SIGSTOP)
    answers: list[LoadOutcome] = []
    tier.submit_load(single("one").name, memory.allocate(5000), answers.append, FOREVER)
    eventually(lambda: not tier.parts.inbox._waiting_loads)
    child = tier.parts.link._process
    assert child is not None
    with monkeypatch.context() as patch:
        patch.setattr(ChildProcess, "has_exited", lambda _: False)
        tier.close(0.0)
    assert answers == [], "it may still be writing there"
    eventually(child.has_exited)
    tier.parts.link.reap()
    assert answers == [Miss(MissReason.IO_ERROR)]


def test_a_closed_inbox_takes_nothing() -> None:
    inbox = Inbox(PATIENT)
    inbox.close()
    name, view = single("late").name, memory.allocate(1)
    place = PackPlace("packs/00/a/000000000001", 1, 4096, 1)
    load_job = RemoteLoad(name, place, None, view, lambda _: None, FOREVER)
    assert inbox.put_load(load_job) is MissReason.TIER_OFF
    store_job = RemoteStore(name, view, 1, lambda _: None, None)
    assert inbox.put_store(store_job) is DropReason.TIER_OFF
