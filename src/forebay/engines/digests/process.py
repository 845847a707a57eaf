"""Digests computed by a separate process that has the slab mapped.

A thread of the engine's process could do this without the interpreter lock, but would need the lock
again after every chunk, and would stop whoever holds it then, mostly the thread that drives the
model. `HashingProcess` asks for all digests of a step in one message. The process ends when its
socket is closed, so it never outlives the engine.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from forebay.engines.codec.exponents import fit
from forebay.engines.copies.contract import DOES_NOT_FIT, Bytes
from forebay.record.exponents import encoded_bytes
from forebay.record.header import payload_hash
from forebay.sys import processes
from forebay.sys.processes import ChildProcess
from forebay.sys.shared import AddressRange, Segment

_MODULE: Final = "forebay.engines.digests.process"
_ANSWER_S: Final = 3.0  # with the time a store waits before this, less than a slot is kept
_PLACES_MAX: Final = 1000  # in a message
_MESSAGE_BYTES_MAX: Final = 1 << 16
_END_S: Final = 1.0
_READY: Final = b"ready"


class SlabRange(NamedTuple):
    """Where a worker's part of one record lies in a slab."""

    start: int
    size: int
    padded: int  # bytes with the zero padding
    page_bytes: int  # size of its pages in the KV cache if they are encoded; else 0


def digest_at(memory: Bytes, place: SlabRange) -> bytes:
    """The digest of what lies there. Writes the zero padding first: the slot was used before.

    DOES_NOT_FIT if a page was encoded that has too many escapes.
    """
    start, size, padded, page_bytes = place
    if page_bytes:
        pages = memory[start : start + size].reshape(-1, encoded_bytes(page_bytes))
        if not fit(pages, page_bytes):  # verify: escapes of what was stored
            return DOES_NOT_FIT
    memory[start + size : start + padded] = 0
    return payload_hash(memory[start : start + padded].data)


class HashingProcess:
    """One process for one slab. Owned by one thread."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        """Start the process; OSError if the system has no process for us."""
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(_ANSWER_S)
        sizes = [f"{each.descriptor}:{each.size_bytes}" for each in segments]
        descriptors = [theirs.fileno(), *(each.descriptor for each in segments)]
        try:
            arguments = [str(os.getpid()), str(theirs.fileno()), *sizes]
            self._process = ChildProcess(_MODULE, arguments, descriptors, is_apart=True)
        except OSError:
            self._connection.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._has_begun = False

    def is_ready(self) -> bool:
        """Whether it answers, which takes a moment after the start; OSError if it is gone."""
        if not self._has_begun:
            if not processes.is_readable(self._connection.fileno()):
                return False
            if self._connection.recv(len(_READY)) != _READY:
                raise ConnectionResetError
            self._has_begun = True
        return True

    def digests_of(self, places: Sequence[SlabRange]) -> list[bytes]:
        """The digest at each place; OSError if the process is gone, or does not answer."""
        digests: list[bytes] = []
        for first in range(0, len(places), _PLACES_MAX):
            asked = places[first : first + _PLACES_MAX]
            self._connection.send(msgspec.msgpack.encode(asked))
            answer = self._connection.recv(_MESSAGE_BYTES_MAX)
            if not answer:
                raise ConnectionResetError
            digests += msgspec.msgpack.decode(answer, type=list[bytes])
        return digests

    def close(self) -> None:
        """End the process; it has the slab unmapped on return, unless the kernel is slow."""
        self._connection.close()
        self._process.kill()
        self._process.wait(_END_S)
        self._process.close()


def main(arguments: Sequence[str]) -> int:
    """Answer the messages of a socket.

    Arguments: the parent, the socket, and each segment's descriptor and size.
    """
    parent, descriptor, *described = arguments
    processes.end_with_parent()
    if os.getppid() != int(parent):  # verify: who asked lives; its slots may be others' by now
        return 1
    connection = socket.socket(fileno=int(descriptor))
    segments = [Segment(*map(int, each.split(":"))) for each in described]
    alignment = max(os.fstat(each.descriptor).st_blksize for each in segments)
    addresses = AddressRange(sum(each.size_bytes for each in segments), alignment)
    for segment in segments:
        addresses.map(segment)
    memory = np.frombuffer(addresses.view, dtype=np.uint8)
    with contextlib.suppress(ConnectionError):
        connection.send(_READY)
        while message := connection.recv(_MESSAGE_BYTES_MAX):
            places = msgspec.msgpack.decode(message, type=list[SlabRange])
            connection.send(msgspec.msgpack.encode([digest_at(memory, each) for each in places]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
