"""Any order of what engines may say, with evictions and I/O in between: books and bytes hold."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.core_harness import NAMESPACE, Client, CoreHarness, chain, payload

from forebay.pool.core.loading import retention
from forebay.pool.core.storing import stores
from forebay.pool.messages import (
    Abort,
    Ask,
    Cancel,
    Clear,
    Commit,
    Lookup,
    Promise,
    Ready,
    Release,
    Reserved,
    Resize,
    Settled,
)
from forebay.pool.session import Work
from forebay.record.header import ROOT
from forebay.record.region import short
from forebay.sys.world import World
from forebay.testing.clock import ManualClock

MIB = 1 << 20
EXAMPLES = int(os.environ.get("FOREBAY_EXAMPLES", "30"))
CHAINS = [chain(f"dialog {number}", 12) for number in range(3)]
# Two dialogs that part after their sixth chunk: a forest, not a bundle of sticks.
CHAINS.append(CHAINS[0][:6] + chain("branch", 12)[6:])
dialogs = st.integers(0, len(CHAINS) - 1)
engines = st.sampled_from("ef")
depths = st.integers(1, 12)
waits = st.sampled_from([0, 5, 10_000])
requests = st.integers(0, 2)


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._few = pytest.MonkeyPatch()
        self._few.setattr(stores, "_AT_ONCE", 3)  # or dialogs as short as these are one turn
        self._clock = ManualClock()
        self._folder = tempfile.TemporaryDirectory()
        Path(self._folder.name).chmod(0o700)
        world = World(clock=self._clock)
        self._desk = CoreHarness(1 * MIB, Path(self._folder.name), 4 * MIB, world)
        self._clients = {name: Client(name) for name in "ef"}
        self._reserving: dict[str, tuple[list[bytes], Work]] = {}
        self._filled: dict[str, list[int]] = {"e": [], "f": []}
        self._asked: dict[tuple[str, int], list[bytes]] = {}
        self._handed: dict[tuple[str, int], dict[int, int]] = {}  # position → slot
        self._orphaned: dict[str, dict[int, bytes]] = {"e": {}, "f": {}}  # slot → key

    @rule(engine=engines, dialog=dialogs, depth=depths)
    def reserve(self, engine: str, dialog: int, depth: int) -> None:
        while engine in self._reserving:
            self.go_on(engine)
        keys = CHAINS[dialog][:depth]
        work = self._desk.reserving(self._clients[engine], keys, ROOT)
        self._reserving[engine] = (keys, work)

    @rule(engine=engines)
    def go_on(self, engine: str) -> None:
        if engine not in self._reserving:
            return
        keys, work = self._reserving[engine]
        for _ in work:
            return
        del self._reserving[engine]
        answers = self._desk.receive(self._clients[engine], Reserved).answers
        for key, answer in zip(keys, answers, strict=True):
            if answer >= 0:
                self._desk.fill(answer, payload(key))
                self._filled[engine].append(answer)

    @rule(engine=engines, dialog=dialogs, depth=depths)
    def store(self, engine: str, dialog: int, depth: int) -> None:
        self.reserve(engine, dialog, depth)
        while engine in self._reserving:
            self.go_on(engine)
        self.commit_or_abort(engine, len(self._filled[engine]), Commit)

    @rule(engine=engines, dialog=dialogs, number=requests, ms=waits)
    def load(self, engine: str, dialog: int, number: int, ms: int) -> None:
        self.lookup(engine, dialog, number)
        self.ask(engine, number, 0, ms)

    @rule(engine=engines, count=depths, kind=st.sampled_from([Commit, Commit, Commit, Abort]))
    def commit_or_abort(self, engine: str, count: int, kind: type[Commit | Abort]) -> None:
        offsets = self._filled[engine][:count]
        del self._filled[engine][:count]
        generation = self._desk.pool.generation
        is_commit = kind is Commit
        message = self._desk.commit_of(offsets) if is_commit else Abort(generation, offsets)
        self._desk.pool.handle(self._clients[engine], message)

    @rule(engine=engines, dialog=dialogs, number=requests)
    def lookup(self, engine: str, dialog: int, number: int) -> None:
        self.cancel(engine, number)
        keys = self._asked[engine, number] = CHAINS[dialog]
        joined = b"".join(map(short, keys))
        self._desk.pool.handle(self._clients[engine], Lookup(number, NAMESPACE, 0, joined))

    @rule(engine=engines, number=requests, first=st.integers(0, 3), ms=waits, count=depths)
    def ask(self, engine: str, number: int, first: int, ms: int, count: int = 12) -> None:
        self._desk.pool.handle(self._clients[engine], Ask(number, first, count, ms, ms == 5))

    @rule(engine=engines, number=requests, chunks=st.lists(st.integers(-1, 12), max_size=4))
    def release(self, engine: str, number: int, chunks: list[int]) -> None:
        self._desk.pool.handle(self._clients[engine], Release(number, chunks))
        handed = self._handed.get((engine, number), {})
        for position in chunks:
            handed.pop(position, None)
        if not chunks:
            self._asked.pop((engine, number), None)
            self._handed.pop((engine, number), None)

    @rule(engine=engines, number=requests)
    def cancel(self, engine: str, number: int) -> None:
        self._desk.pool.handle(self._clients[engine], Cancel(number))
        self._asked.pop((engine, number), None)
        self._handed.pop((engine, number), None)

    @rule(engine=engines, for_good=st.booleans())
    def leave(self, engine: str, for_good: bool) -> None:
        if engine in self._reserving:
            self._reserving.pop(engine)[1].close()
        self._desk.pool.disconnected(self._clients[engine])
        self._clients[engine] = Client(engine)
        for name in [name for name in self._asked if name[0] == engine]:
            keys, handed = self._asked.pop(name), self._handed.pop(name, {})
            self._orphaned[engine] |= {offset: keys[at] for at, offset in handed.items()}
        if for_good:
            self._desk.pool.exited(engine)
            self._filled[engine].clear()
            self._orphaned[engine].clear()

    @rule(engine=engines, other=engines)
    def settled(self, engine: str, other: str) -> None:
        self._desk.pool.handle(self._clients[other], Settled(engine))
        self._orphaned[engine].clear()
        for name in [name for name in self._asked if name[0] == engine]:
            del self._asked[name]
            self._handed.pop(name, None)

    @rule(seconds=st.sampled_from([0.01, retention.RETAIN_S]))
    def wait(self, seconds: float) -> None:
        self._desk.settle()  # or the drive seems to hang, and is switched off
        self._clock.advance(seconds)
        self._desk.turn()

    @rule(engine=engines)
    def clear(self, engine: str) -> None:
        self._desk.pool.handle(self._clients[engine], Clear(None))

    @rule(engine=engines, slots=st.integers(4, 16))
    def resize(self, engine: str, slots: int) -> None:
        self._desk.pool.handle(self._clients[engine], Resize(slots * MIB // 16, []))

    @rule(turns=st.integers(1, 5))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self._desk.turn()

    @rule()
    def settle(self) -> None:
        self._desk.settle()

    @invariant()
    def the_books_are_right(self) -> None:
        assert self._desk.pool.violations() == []

    @invariant()
    def what_is_handed_out_is_exact(self) -> None:
        for engine, client in self._clients.items():
            for message in client.inbox:
                name = (engine, getattr(message, "request", -1))
                keys = self._asked.get(name)
                if keys is None:
                    continue
                slots = self._handed.setdefault(name, {})
                if isinstance(message, Promise):
                    slots |= dict(enumerate(message.offsets, message.first))
                    handed = zip(
                        keys[message.first :], message.offsets, message.lengths, strict=False
                    )
                    for key, offset, length in handed:
                        assert self._desk.pool.view(offset, length) == payload(key)
                elif isinstance(message, Ready) and message.length:
                    slots[message.chunk] = message.offset
                    found = self._desk.pool.view(message.offset, message.length)
                    assert found == payload(keys[message.chunk])
            client.inbox.clear()

    @invariant()
    def what_a_lost_connection_was_promised_stays_exact(self) -> None:
        for orphaned in self._orphaned.values():
            for offset, key in orphaned.items():
                wanted = payload(key)
                assert self._desk.pool.view(offset, len(wanted)) == wanted

    def teardown(self) -> None:
        self._few.undo()
        for engine, client in self._clients.items():
            self._desk.pool.disconnected(client)
            self._desk.pool.exited(engine)
        self._desk.settle()
        assert self._desk.pool.violations() == []
        assert self._desk.number("pinned_bytes") == 0
        assert self._desk.number("pinned_chunks") == 0
        assert self._desk.number("leased_slots") == 0
        self._desk.pool.close(300)
        self._folder.cleanup()


PoolMachine.TestCase.settings = settings(max_examples=10, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_any_history_leaves_the_books_right_at_length() -> None:
    run_state_machine_as_test(
        PoolMachine,
        settings=settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None),
    )
