"""The child's own code, in this process: it serves what it is asked and ends with its socket."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from forebay.sys import processes, shared
from forebay.sys.shared import SharedMemory
from forebay.tiers.remote.accounting.ledger import RequestCounts, counts_of
from forebay.tiers.remote.index.table import RecordTable
from forebay.tiers.remote.index.used import pack_used
from forebay.tiers.remote.process.child import Child, main
from forebay.tiers.remote.process.messages import (
    Action,
    Answer,
    StoreRequest,
    decode_answer,
    encode,
)
from forebay.tiers.remote.process.recovery import PacksRead, Recovered
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.remote.stores.directory import DirectoryStore

# Puts, gets, listings, deletions, and bytes sent and received.
PROBED = RequestCounts(1, 1, 0, 0, 64, 64)
LISTED = RequestCounts(lists=1)
NOTES = [(8, 0, 4096)]  # where maintenance notes what they ask for


class Asking:
    """One end of a child's socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.notes: SharedMemory | None = None

    def send(self, request: StoreRequest, *descriptors: int) -> None:
        socket.send_fds(self.connection, [encode(request)], list(descriptors))

    def maintain(
        self, action: Action, at: int = 0, limit: int = 0
    ) -> tuple[Answer, list[bytes], RequestCounts]:
        """What maintenance says, and what it asked of the store."""
        if self.notes is None:
            self.notes = SharedMemory.of(4096)
            area = StoreRequest(0, Action.MAP, at=8)
            self.send(area, self.notes.segments[0].descriptor)
        self.notes.view[:] = bytes(4096)
        answer, results = self.ask(StoreRequest(1, action, at=at, buffers=NOTES, limit=limit))
        return answer, results, counts_of(self.notes.view)

    def ask(self, request: StoreRequest) -> tuple[Answer, list[bytes]]:
        self.send(request)
        data, descriptors, _, _ = socket.recv_fds(self.connection, 1 << 16, 4)
        results = []
        for descriptor in descriptors:
            results.append(bytes(shared.mapped(descriptor, write=False)))
            processes.close(descriptor)
        return decode_answer(data), results


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(60)
    arguments = [str(theirs.detach()), f"file://{tmp_path}?cap=1GiB", "a", "2", "100"]
    child = threading.Thread(target=main, args=[arguments])
    child.start()
    yield Asking(ours)
    ours.close()
    child.join(60)
    assert not child.is_alive()


def test_it_does_what_it_is_asked(asking: Asking) -> None:
    memory = SharedMemory.of(8192)
    memory.view[:5] = b"bytes"
    asking.send(StoreRequest(0, Action.MAP, at=7), memory.segments[0].descriptor)
    put = StoreRequest(1, Action.PUT, "packs/00/a/x", buffers=[(7, 0, 5)])
    assert asking.ask(put) == (Answer(1), [])
    get = StoreRequest(2, Action.GET, "packs/00/a/x", 1, [(7, 4096, 100)])
    assert asking.ask(get) == (Answer(2, count=4), [])
    assert bytes(memory.view[4096:4101]) == b"ytes\0"
    assert asking.ask(StoreRequest(3, Action.DELETE, "packs/00/a/x")) == (Answer(3), [])
    absent = Answer(4, StoreFailure.ABSENT)
    assert asking.ask(msgspec.structs.replace(get, number=4)) == (absent, [])
    asking.send(StoreRequest(0, Action.UNMAP, at=7))
    assert asking.maintain(Action.PROBE) == (Answer(1), [], PROBED)
    nothing = msgspec.msgpack.encode(Recovered([], []))
    assert asking.maintain(Action.RECOVER) == (Answer(1), [nothing], RequestCounts(lists=2))
    nothing = msgspec.msgpack.encode(PacksRead([], [], []))
    assert asking.maintain(Action.READ_PACKS) == (Answer(1), [nothing], RequestCounts())
    assert asking.maintain(Action.SWEEP, at=1) == (Answer(1, count=0), [], LISTED)
    answer, (tails, snapshots), _ = asking.maintain(Action.REFRESH, at=-1, limit=9)
    assert RecordTable(memoryview(tails)).rows == RecordTable(memoryview(snapshots)).rows == 0
    again = asking.maintain(Action.REFRESH, at=answer.count, limit=9)
    assert again == (Answer(1, count=answer.count), [tails], LISTED)
    answer, (audited,), asked = asking.maintain(Action.AUDIT)
    assert (answer, asked) == (Answer(1), RequestCounts(gets=3, lists=2)), "its own requests"
    assert msgspec.msgpack.decode(audited) == [False, False, [], False]
    used = asking.maintain(Action.USED, limit=9)
    assert used == (Answer(1), [pack_used([])], RequestCounts(gets=1, lists=1))
    memory.close()


@pytest.mark.expects_faults
def test_a_bug_ends_one_call(asking: Asking) -> None:
    unmapped = StoreRequest(1, Action.PUT, "packs/00/a/x", buffers=[(99, 0, 5)])
    assert asking.ask(unmapped) == (Answer(1, StoreFailure.FAILED), [])
    assert asking.maintain(Action.PROBE) == (Answer(1), [], PROBED)


def test_an_answer_that_nobody_waits_for_is_dropped(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    with theirs:
        Child(theirs, DirectoryStore(str(tmp_path), "a"), "a", 1)._answer(Answer(1), [b"result"])
