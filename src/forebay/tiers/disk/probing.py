"""Probes a drive with a record that goes through its queues and threads, to the medium and back.

The record lies in the directory's lock file and not in a region, so that no record is evicted for
it, and no start or index finds it. One probe at a time: until a drive has answered, the next is
refused.
"""

import contextlib
import secrets
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from forebay.record.header import KEY_BYTES, NAMESPACE_BYTES, ROOT, RecordName
from forebay.sys import memory
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.catalog import RecordPlace
from forebay.tiers.contract import (
    Dropped,
    LoadOutcome,
    Miss,
    MissReason,
    StoreOutcome,
)
from forebay.tiers.disk.queue import LoadJob, StoreJob
from forebay.tiers.disk.regions.directory import LOCK_NAME
from forebay.tiers.disk.regions.region import Region

_NEVER: Final = float("inf")  # a probe has no deadline here: its caller has one
_NAMESPACE: Final = bytes(NAMESPACE_BYTES)


class RecordProbe:
    """The probe of one drive. Any thread may call."""

    def __init__(self, lock: int) -> None:
        # No region has generation 0, so this is never taken for a region's record.
        self._region = Region(0, LOCK_NAME, 0, lock, 2 * PAGE_BYTES)
        self._turn = threading.Lock()  # held while a probe is under way

    def begin(
        self,
        store: Callable[[StoreJob], None],
        load: Callable[[LoadJob], None],
        done: Callable[[str], None],
    ) -> None:
        """Store a random record, load it and wipe it; `done` is then told what failed, or "".

        `done` is called on one of the drive's threads, or at once.
        """
        name = RecordName(_NAMESPACE, 0, secrets.token_bytes(KEY_BYTES), ROOT)
        source, target = memory.allocate(PAGE_BYTES), memory.allocate(PAGE_BYTES)
        source[:] = secrets.token_bytes(PAGE_BYTES)
        if not self._turn.acquire(blocking=False):
            done(MissReason.BUSY)
            return

        def end(failure: str) -> None:
            self._turn.release()
            done(failure)

        def stored(outcome: StoreOutcome) -> None:
            if isinstance(outcome, Dropped):
                end(outcome.reason)
                return
            place = RecordPlace(0, 0, PAGE_BYTES)
            load(LoadJob(name, self._region, place, target, loaded, _NEVER))

        def loaded(outcome: LoadOutcome) -> None:
            # A hit proves it: the key is new each time, and the hash is of these bytes.
            failure = outcome.reason if isinstance(outcome, Miss) else ""
            memory.zero(source)
            wiped = partial(ended, failure)
            job = StoreJob(name, source, PAGE_BYTES, wiped, region=self._region, is_wiping=True)
            store(job)

        def ended(failure: str, outcome: StoreOutcome) -> None:
            end(failure or (outcome.reason if isinstance(outcome, Dropped) else ""))

        with contextlib.ExitStack() as undo:
            undo.callback(self._turn.release)  # if this one cannot begin, the next one may
            store(StoreJob(name, source, PAGE_BYTES, stored, region=self._region))
            undo.pop_all()
