"""The child's own code, in this process: it serves what it is asked and ends with its socket."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from forebay.sys import processes, shared
from forebay.sys.shared import SharedMemory
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
from forebay.tiers.remote.store import StoreFailure
from forebay.tiers.remote.stores.directory import DirectoryStore

# Puts, gets, listings, deletions, and bytes sent and received.
PROBED = (1, 1, 0, 0, 64, 64)
LISTED = (0, 0, 1, 0, 0, 0)


class Asking:
    """One end of a child's socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, request: StoreRequest, *descriptors: int) -> None:
        socket.send_fds(self.connection, [encode(request)], list(descriptors))

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
    assert asking.ask(StoreRequest(5, Action.PROBE)) == (Answer(5, requests=PROBED), [])
    nothing = msgspec.msgpack.encode([])
    recovered = Answer(6, requests=(0, 0, 2, 0, 0, 0))
    assert asking.ask(StoreRequest(6, Action.RECOVER)) == (recovered, [nothing])
    swept = Answer(7, count=0, requests=LISTED)
    assert asking.ask(StoreRequest(7, Action.SWEEP, at=1)) == (swept, [])
    answer, (tails, snapshots) = asking.ask(StoreRequest(8, Action.REFRESH, at=-1))
    assert RecordTable(memoryview(tails)).rows == RecordTable(memoryview(snapshots)).rows == 0
    again = StoreRequest(9, Action.REFRESH, at=answer.count)
    assert asking.ask(again) == (Answer(9, count=answer.count, requests=LISTED), [tails])
    audit = StoreRequest(10, Action.AUDIT)
    answer, (audited,) = asking.ask(audit)
    assert answer == Answer(10, requests=(0, 3, 2, 0, 0, 0)), "its requests are its own"
    assert msgspec.msgpack.decode(audited) == [False, False, [], False]
    used = StoreRequest(11, Action.USED)
    assert asking.ask(used) == (Answer(11, requests=(0, 1, 1, 0, 0, 0)), [pack_used([])])
    memory.close()


@pytest.mark.expects_faults
def test_a_bug_ends_one_call(asking: Asking) -> None:
    unmapped = StoreRequest(1, Action.PUT, "packs/00/a/x", buffers=[(99, 0, 5)])
    assert asking.ask(unmapped) == (Answer(1, StoreFailure.FAILED), [])
    assert asking.ask(StoreRequest(2, Action.PROBE)) == (Answer(2, requests=PROBED), [])


def test_an_answer_that_nobody_waits_for_is_dropped(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    with theirs:
        Child(theirs, DirectoryStore(str(tmp_path), "a"), "a", 1)._answer(Answer(1), [b"result"])
