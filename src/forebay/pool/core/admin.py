"""Admin operations on a running pool: changing caps, rotating keys, clearing namespaces.

Whatever waits for a medium runs on a thread of its own, and is answered when it is done.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from forebay.errors import DirectoryError, StartupError
from forebay.pool.core.chunks import Chunk, SlotState
from forebay.pool.core.parts import CoreParts
from forebay.pool.encryption import Encryption
from forebay.pool.messages import NAMESPACE_RULE, AdminReply, Clear, Resize, is_namespace
from forebay.pool.session import Session
from forebay.quantity import SIZE_BYTES_MAX, format_size
from forebay.sys.shared import Segment
from forebay.tiers.dram.taking import add_memory
from forebay.tiers.dram.wiping import wipe_free
from forebay.tiers.quotas import FLOORS

_log: Final = logging.getLogger(__name__)
_SHOWN_DIGITS: Final = 16  # digits of a namespace that an answer shows
_SHOWN_MAX: Final = 8  # namespaces listed in one answer
_OPERATIONS_MAX: Final = 4  # under way at once
_ANSWER_S: Final = 60.0  # how long to wait for the pool's thread, even on a busy machine
_CLOSING_S: Final = 0.1  # how often a waiting thread checks whether the pool is closing
_CLEAR_S: Final = 2.0  # how long to wait for writes and hashes in flight


@dataclass(slots=True)
class _Clearing:
    """A clear operation under way."""

    session: Session  # to be answered
    digits: str  # first hex digits of the namespace, in lower case; "": all
    deadline: float  # monotonic
    scrub: bool = False  # overwrite what is deleted, and flush
    chunks: int = 0  # chunks that have left DRAM
    sizes: Counter[bytes] = field(default_factory=Counter)  # payload bytes of these, by namespace


class AdminOperations:
    """Resizing, rotating and clearing. Owned by the pool's thread."""

    def __init__(
        self,
        parts: CoreParts,
        grown: Callable[[Segment], None],
        encryption: Encryption | None = None,
    ) -> None:
        """`grown` is called with each segment added to the slab, before it is used."""
        self._grown = grown
        self._encryption = encryption
        self._is_growing = False
        self._dram, self._stack = parts.dram, parts.stack
        self._clock, self._complete = parts.clock, parts.complete
        self._barrier = parts.barrier
        self._clearing: list[_Clearing] = []
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()

    @property
    def is_waiting(self) -> bool:
        """Whether an operation goes on with the next tick."""
        return bool(self._clearing)

    def resize(self, session: Session, message: Resize) -> None:
        """Change caps; what does not fit under them leaves."""
        if max((message.dram_bytes, *(cap for _, cap in message.disk))) > SIZE_BYTES_MAX:
            sentence = f"a cap is {SIZE_BYTES_MAX} bytes at most."
            session.send(AdminReply(ok=False, sentence=sentence))
            return
        arena_bytes = self._dram.slab.arena_bytes
        if 0 < message.dram_bytes < arena_bytes:  # that would be none; only 0 means none
            sentence = f"DRAM of this pool is {format_size(arena_bytes)} at least, one arena."
            session.send(AdminReply(ok=False, sentence=sentence))
            return
        if 0 <= message.dram_bytes < min(self._dram.slab.cap_bytes, self._dram.quotas.floors_bytes):
            session.send(AdminReply(ok=False, sentence=f"DRAM cannot be so small: {FLOORS}."))
            return
        missing_bytes = self._dram.slab.missing_bytes(message.dram_bytes)
        if missing_bytes and self._is_growing:
            session.send(AdminReply(ok=False, sentence="DRAM is being raised already; try again."))
            return
        self._is_growing = self._is_growing or bool(missing_bytes)
        caps = [f"DRAM {format_size(message.dram_bytes)}"] if message.dram_bytes >= 0 else []
        caps += [f"{path} {format_size(cap_bytes)}" for path, cap_bytes in message.disk]
        _log.info("resizing to %s, as process %s asks", ", ".join(caps), session.process or "?")
        if not self.in_background(session, partial(self._resize, message, missing_bytes)):
            self._growth_ended(missing_bytes)

    def clear(self, session: Session, message: Clear) -> None:
        """Delete one namespace, or all, from every tier."""
        name = message.namespace
        if name is not None and not is_namespace(name):  # verify: a namespace's digits
            session.send(AdminReply(ok=False, sentence=NAMESPACE_RULE))
            return
        what = "everything" if name is None else f"namespace {name}"
        _log.info("clearing %s, as process %s asks", what, session.process or "?")
        deadline = self._clock.monotonic() + _CLEAR_S
        self._clearing.append(_Clearing(session, (name or "").lower(), deadline, message.scrub))
        self.tick(self._clock.monotonic())

    def rotate(self, session: Session) -> None:
        """Read the keys again, and encrypt new records under new ones."""
        _log.info("rotating keys, as process %s asks", session.process or "?")
        self.in_background(session, self._rotate)

    def tick(self, now: float) -> None:
        """Continue clears that wait for writes and hashes in flight."""
        self._dram.drop_condemned()
        for clearing in list(self._clearing):
            digits = clearing.digits
            found = [c for c in self._dram.chunks if c.name.namespace.hex().startswith(digits)]
            kept = self._dram.condemn(found)
            gone = [chunk for chunk in found if not self._dram.is_condemned(chunk)]
            clearing.chunks += len(gone)
            for chunk in gone:
                clearing.sizes[chunk.name.namespace] += chunk.length
            if kept and now < clearing.deadline and any(map(_ends_soon, found)):
                continue
            self._clearing.remove(clearing)
            self.in_background(clearing.session, partial(self._erase, clearing, kept))

    def close(self, timeout_s: float) -> None:
        """Wait for running operations that do not need the pool's thread."""
        self._closing.set()
        for thread in self._threads:
            thread.join(timeout_s)

    def in_background(self, session: Session, work: Callable[[], AdminReply]) -> bool:
        """Run an operation on a thread; False if it cannot begin, which the session is told."""

        def run() -> None:
            failed = AdminReply(ok=False, sentence="the pool failed at it; its log says why.")
            reply = self._barrier.result("an admin operation", failed, work)
            _log.log(logging.INFO if reply.ok else logging.WARNING, "%s", reply.sentence)
            self._complete(partial(session.send, reply))

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= _OPERATIONS_MAX:
            session.send(
                AdminReply(
                    ok=False, sentence="the pool is busy with other admin operations; try again."
                )
            )
            return False
        thread = threading.Thread(target=run, name="forebay-admin", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system cannot start a thread now
            session.send(AdminReply(ok=False, sentence="no thread can be had now; try again."))
            return False
        self._threads.append(thread)
        return True

    def _resize(self, message: Resize, missing_bytes: int) -> AdminReply:
        """Runs on a thread of its own, since it takes memory and waits for drives."""
        try:
            reply = self._resize_disks(message)
            if reply.ok and missing_bytes:
                refused = add_memory(self._dram.slab.memory, missing_bytes)
                reply = AdminReply(ok=False, sentence=f"{refused}.") if refused else reply
            if reply.ok and message.dram_bytes >= 0:
                self._complete(partial(self._resize_dram, message.dram_bytes))
            return reply
        finally:
            self._complete(partial(self._growth_ended, missing_bytes))

    def _rotate(self) -> AdminReply:
        """Runs on a thread of its own, since keys may come from afar and drives are waited for."""
        if self._encryption is None:
            return AdminReply(ok=False, sentence="this pool does not encrypt; set encryption.")
        try:
            current = self._encryption.reread()
            self._stack.rotate()
        except StartupError as error:
            return AdminReply(ok=False, sentence=str(error))
        except OSError as error:
            sentence = f"new keys cannot be kept ({error.strerror}); old ones go on being used."
            return AdminReply(ok=False, sentence=sentence)
        sentence = f"new records are encrypted under key {current}; old ones stay readable."
        return AdminReply(ok=True, sentence=sentence)

    def _growth_ended(self, missing_bytes: int) -> None:
        self._is_growing = self._is_growing and not missing_bytes

    def _resize_disks(self, message: Resize) -> AdminReply:
        for path, cap_bytes in message.disk:
            try:
                known = self._stack.resize(path, cap_bytes)
            except DirectoryError as error:
                return AdminReply(ok=False, sentence=str(error))
            if not known:
                return AdminReply(ok=False, sentence=f"{path} is not a directory of this pool.")
        return AdminReply(ok=True, sentence="caps changed.")

    def _resize_dram(self, cap_bytes: int) -> None:
        for segment in self._dram.slab.new_segments():
            self._grown(segment)
        self._dram.slab.resize(cap_bytes)
        self._dram.shrink()

    def on_pool_thread(self, action: Callable[[], object]) -> bool:
        """Run an action on the pool's thread; False if that took too long or the pool closes.

        An action that was given up is not run later.
        """
        done, given_up = threading.Event(), threading.Event()

        def run() -> None:
            if not given_up.is_set():
                action()
                done.set()

        self._complete(run)
        until = self._clock.monotonic() + _ANSWER_S
        while not done.wait(_CLOSING_S):
            if self._closing.is_set() or self._clock.monotonic() > until:
                given_up.set()
                break
        return done.is_set()

    def _erase(self, clearing: _Clearing, kept: int) -> AdminReply:
        records, sizes = self._stack.erase(clearing.digits, scrub=clearing.scrub)
        is_wiped = wipe_free(self._dram.slab, self.on_pool_thread, self._dram.used_bytes)
        dram_bytes, lower_bytes = clearing.sizes.total(), sizes.total()
        sentence = (
            f"removed {clearing.chunks} chunks ({format_size(dram_bytes)}) from DRAM and"
            f" {records} records ({format_size(lower_bytes)}) from lower tiers"
        )
        names = sorted(name.hex()[:_SHOWN_DIGITS] for name in clearing.sizes + sizes)
        more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
        sentence += f", of namespaces {', '.join(names[:_SHOWN_MAX])}{more}" if names else ""
        sentence += f"; {kept} chunks in use stay until they are released" if kept else ""
        others = self._stack.packs_of_others(clearing.digits)
        sentence += f"; {others} packs of other hosts are theirs to clear." if others else "."
        sentence += "" if is_wiped else " What they left in memory was not all zeroed; clear again."
        return AdminReply(ok=is_wiped, sentence=sentence)


def _ends_soon(chunk: Chunk) -> bool:
    """Whether a chunk is in use by the pool alone (a write, read or hash), and not by an engine."""
    if chunk.state is SlotState.FILLING or chunk.load_pins:
        return False
    return chunk.is_busy
