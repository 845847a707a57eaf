"""One store and one load, followed call by call: calls go down, and come back to few files.

What a person has to follow are the files that act. A file is entered when another file calls into
it; it is called back when it waits for that other file meanwhile. Files that hold state and answer
questions about it (slots, budgets, requests, tiers) are asked as often as it takes.
"""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from tests.core_harness import LENGTH, NAMESPACE, Client, CoreHarness, chain, payload

from forebay.pool import core as package
from forebay.pool.messages import (
    Ask,
    ChunkRun,
    ClientMessage,
    Lookup,
    Promise,
    Release,
    Reserve,
    Reserved,
)
from forebay.record.header import ROOT
from forebay.record.region import short

MIB = 1 << 20
CORE = str(Path(package.__file__).parent) + "/"
ACTING = (  # whoever follows a store or a load reads these
    "loading/acquisition.py",
    "loading/loads.py",
    "loading/promotions.py",
    "loading/read_ahead.py",
    "loading/replies.py",
    "lookups/lookups.py",
    "storing/stores.py",
)
AGAIN_MAX = 2  # a file may be entered again, or called back
# What a tier calls when it is done, even before it returns: they leave word for a round to come.
COMPLETIONS = frozenset({"_complete", "_ended_on_thread"})


class Calls:
    """Who was entered while a pool did something."""

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()  # in all that was followed
        self.called_back: Counter[str] = Counter()  # in one message or round, at most
        self._files: list[str] = []  # of the calls under way
        self._called_back: Counter[str] = Counter()  # in this message or round

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            name, is_done = frame.f_code.co_filename, frame.f_code.co_name in COMPLETIONS
            file = name[len(CORE) :] if name.startswith(CORE) and not is_done else ""
            last = next(filter(None, reversed(self._files)), "")
            if file and file != last:
                (self._called_back if file in self._files else self.entered)[file] += 1
            self._files.append(file)
        elif event == "return" and self._files:
            self._files.pop()

    def follow(self, act: Callable[[], object]) -> None:
        sys.setprofile(self)
        try:
            act()
        finally:
            sys.setprofile(None)
        self._files.clear()
        self.called_back |= self._called_back
        self._called_back.clear()

    def say(self, core: CoreHarness, client: Client, message: ClientMessage) -> None:
        """As the server does it."""

        def act() -> None:
            for _ in core.pool.handle(client, message) or ():
                pass
            core.pool.answered()

        self.follow(act)

    def settle(self, core: CoreHarness) -> None:
        """All rounds until no tier has anything in hand."""
        self.follow(core.pool.complete)
        while not core.pool.is_settled:
            core.wait_until_woken()
            self.follow(core.pool.complete)

    def check(self, chunks: int) -> None:
        if chunks == 1:  # of many, each read that ends is a call of its own
            found = {file: self.entered[file] for file in ACTING if self.entered[file]}
            assert found, "something was followed"
            assert max(found.values()) <= 1 + AGAIN_MAX, found
        assert max(self.called_back.values(), default=0) <= AGAIN_MAX, self.called_back


def store(core: CoreHarness, client: Client, keys: list[bytes]) -> Calls:
    calls, run = Calls(), ChunkRun(NAMESPACE, 0, ROOT, b"".join(keys), LENGTH)
    calls.say(core, client, Reserve(7, [run]))
    offsets = core.receive(client, Reserved).answers
    for key, offset in zip(keys, offsets, strict=True):
        core.fill(offset, payload(key))
    calls.say(core, client, core.commit_of(offsets))
    calls.settle(core)
    return calls


def load(core: CoreHarness, client: Client, keys: list[bytes], *, waits: bool) -> Calls:
    calls, count = Calls(), len(keys)
    calls.say(core, client, Lookup(1, NAMESPACE, 0, b"".join(map(short, keys))))
    if waits:
        calls.settle(core)
    calls.say(core, client, Ask(1, 0, count, 10_000, False))
    calls.settle(core)
    assert len(core.receive(client, Promise).offsets) == count
    calls.say(core, client, Release(1, []))
    return calls


@pytest.mark.parametrize("chunks", [1, 16])
def test_a_store_and_a_load_are_easily_followed(tmp_path: Path, chunks: int) -> None:
    tmp_path.chmod(0o700)
    client, keys = Client("e"), chain("a", chunks)
    core = CoreHarness(4 * MIB, tmp_path, 64 * MIB)
    core.turn()
    store(core, client, keys).check(chunks)
    load(core, client, keys, waits=True).check(chunks)
    core.pool.close(300)
    for waits in (True, False):
        core = CoreHarness(4 * MIB, tmp_path, 64 * MIB)
        core.turn()  # looks for dialogs to read back, and not again before a second has passed
        from_drive = load(core, client, keys, waits=waits)
        assert from_drive.entered["loading/promotions.py"], "the drive was asked"
        from_drive.check(chunks)
        core.pool.close(300)
