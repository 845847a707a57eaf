"""A pool above a store that hosts share: off and back, and what it tells of it."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.core_harness import LENGTH, NAMESPACE, Client, CoreHarness, chain
from tests.remote_harness import PATIENT, open_remote

from forebay.decisions import Decision
from forebay.metrics.reading import tier_of
from forebay.pool.messages import Found, Lookup
from forebay.pool.policy.admission import LowerTier
from forebay.record.region import short
from forebay.sys.world import World
from forebay.tiers.contract import Tier, TierListener

MIB = 1 << 20
STORED = {"tier": "remote", "direction": "store", "outcome": "ok"}
LOADED = {"tier": "remote", "direction": "load", "outcome": "ok"}


def store_in(place: Path, host: str = "a") -> Callable[[TierListener, World], Tier]:
    options = replace(PATIENT, probe_interval_s=10.0)

    def opened(listener: TierListener, world: World) -> Tier:
        return open_remote(
            place, host, options=options, listener=listener, world=world, cap_bytes=16 * MIB
        )

    return opened


def pool_on(place: Path, host: str = "a", tier: LowerTier | None = None) -> CoreHarness:
    return CoreHarness(8 * MIB, learned=tier or LowerTier(16 * MIB), store=store_in(place, host))


def close(core: CoreHarness) -> None:
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(60)


def test_what_is_stored_while_the_store_is_away_is_sent_when_it_is_back(tmp_path: Path) -> None:
    place = tmp_path / "shared"
    core, client = pool_on(place), Client("e")
    early, late = chain("away from the start", 4), chain("while away again", 4)
    core.store(client, early)
    core.settle()
    assert core.number("operations", **STORED) == 0
    place.mkdir(mode=0o700)
    core.pass_time_until(lambda: core.number("operations", **STORED) == 4)
    place.rename(tmp_path / "elsewhere")
    core.store(client, late)
    core.pass_time_until(lambda: not tier_of(core.pool.stats(), "remote")["volumes"][0]["is_on"])
    (tmp_path / "elsewhere").rename(place)
    core.pass_time_until(lambda: core.number("operations", **STORED) == 8)
    close(core)


def test_chunks_leave_dram_though_a_store_that_is_away_has_not_got_them(tmp_path: Path) -> None:
    core, client = pool_on(tmp_path / "missing"), Client("e")
    slots = 8 * MIB // LENGTH
    for number in range(slots):  # twice what DRAM holds
        core.store(client, chain(f"dialog {number}", 2))
    assert core.load(client, chain(f"dialog {slots - 1}", 2))
    close(core)


def test_of_a_dialog_only_its_return_is_sent_and_then_all_of_it(tmp_path: Path) -> None:
    place = tmp_path / "shared"
    place.mkdir(mode=0o700)
    core = pool_on(place, tier=LowerTier(16 * MIB, reused_only=True))
    client, keys = Client("e"), chain("dialog", 6)
    core.store(client, keys[:4])
    for _ in range(20):
        core.turn()
    core.settle()
    assert core.number("operations", **STORED) == 0, "seen once"
    assert core.load(client, keys[:4])
    core.pass_time_until(lambda: core.number("operations", **STORED) == 4)
    close(core)


def found(core: CoreHarness, client: Client, keys: list[bytes], speed: float = 0.0) -> Found:
    client.inbox.clear()
    joined = b"".join(map(short, keys))
    number = 1000 + len(client.engine)
    core.pool.handle(client, Lookup(number, NAMESPACE, 0, joined, gpu_bytes_a_s=speed))
    return core.receive(client, Found)


def test_lookups_say_what_lies_in_a_store_and_how_fast_that_is(tmp_path: Path) -> None:
    place = tmp_path / "shared"
    place.mkdir(mode=0o700)
    first, keys = pool_on(place), chain("dialog", 4)
    first.store(Client("e"), keys)
    first.pass_time_until(lambda: first.number("operations", **STORED) == 4)
    close(first)
    core, client = pool_on(place, "b"), Client("f")
    (run,) = found(core, client, keys[:1]).stores
    assert (run.first, run.chunks, run.bytes_a_s) == (0, 1, 0.0), "nobody has read from it yet"
    core.until(lambda: core.number("operations", **LOADED) == 1)
    tier = core.pool._stack.tiers()[0][1]
    # The clock stands still: what was read took no time. Say that it was a slow store.
    speed = tier.parts.speed  # type: ignore[attr-defined]
    speed._record_s, speed._bytes_a_s, speed._seen_at = 2.0, 1e6, core.clock.monotonic()
    (run,) = found(core, Client("ff"), keys, speed=1e9).stores
    assert (run.first, run.chunks, run.first_ms, run.bytes_a_s) == (1, 3, 2000.0, 1e6)
    for _ in range(20):
        core.turn()
    core.settle()
    assert core.number("operations", **LOADED) == 1, "a GPU is faster: nothing is read ahead"
    assert found(core, Client("fff"), keys, speed=1e3).known == 4
    core.until(lambda: core.number("operations", **LOADED) == 4)
    assert core.load(Client("g"), keys)
    close(core)


def test_what_is_being_read_from_a_store_that_stalls_lies_there_still(tmp_path: Path) -> None:
    place = tmp_path / "shared"
    place.mkdir(mode=0o700)
    first, keys = pool_on(place), chain("dialog", 4)
    first.store(Client("e"), keys)
    first.pass_time_until(lambda: first.number("operations", **STORED) == 4)
    close(first)
    core = pool_on(place, "b")
    child = core.pool._stack.tiers()[0][1].parts.link.pid  # type: ignore[attr-defined]
    os.kill(child, signal.SIGSTOP)
    for engine in ("f", "ff"):
        (run,) = found(core, Client(engine), keys).stores
        assert (run.first, run.chunks) == (0, 4)
        core.turn()
    os.kill(child, signal.SIGCONT)
    core.until(lambda: core.number("operations", **LOADED) == 4)
    close(core)


def test_a_store_whose_requests_are_used_up_is_named(tmp_path: Path) -> None:
    place = tmp_path / "shared"
    place.mkdir(mode=0o700)
    core, client, keys = pool_on(place), Client("e"), chain("dialog", 2)
    core.store(client, keys)
    core.pass_time_until(lambda: core.number("operations", **STORED) == 2)
    tier = core.pool._stack.tiers()[0][1]
    tier.parts.ledger.requests_a_day = 1  # type: ignore[attr-defined]
    core.pool._dram.drop(core.pool._dram.chunks.get(short(keys[1])))  # type: ignore[arg-type]
    lookups = core.pool._lookups
    message = Lookup(1, NAMESPACE, 0, b"".join(map(short, keys)))
    known = found(core, client, keys).known
    assert known == 1
    assert lookups._why_no_more(message, list(map(short, keys)), known) is Decision.REQUEST_BUDGET
    close(core)
