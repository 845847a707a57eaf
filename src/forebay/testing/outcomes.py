"""Collects a tier's outcomes and news: loads and stores submitted in bulk, and a listener."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from forebay.record.region import short
from forebay.sys import memory
from forebay.testing.samples import Sample
from forebay.tiers.contract import (
    Hit,
    LoadOutcome,
    Miss,
    Removed,
    Stored,
    StoreOutcome,
    Tier,
    TierListener,
)

FOREVER: Final = float("inf")  # a deadline on any clock


class RecordingListener(TierListener):
    """Records what a tier told; acts as another tier that has the chunks in `held`."""

    def __init__(self) -> None:
        self.gone: list[Removed] = []
        self.held: set[bytes] = set()  # short keys
        self._known: set[bytes] = set()  # short keys that the tier has learned about
        self._learned = threading.Condition()  # guards `_known`

    def hold(self, *samples: Sample) -> None:
        """Let the other tier have these samples."""
        self.held |= {short(sample.name.key) for sample in samples}

    def removed(self, records: list[Removed]) -> None:
        """See TierListener."""
        self.gone += records

    def learned(self, keys: Sequence[bytes]) -> None:
        """See TierListener."""
        with self._learned:
            self._known |= {short(key) for key in keys}
            self._learned.notify_all()

    def holds(self, key: bytes) -> bool:
        """See TierListener."""
        return key in self.held

    def wait_until_known(self, key: bytes, timeout_s: float) -> bool:
        """Wait until the tier tells that it has learned about this key; False if it is too late."""
        with self._learned:
            return self._learned.wait_for(lambda: short(key) in self._known, timeout_s)


class Outcomes:
    """Submits loads and stores to a tier and collects the outcomes; any thread may submit."""

    def __init__(self, tier: Tier, on_stored: Callable[[Sample], None] | None = None) -> None:
        self._tier = tier
        self._on_stored = on_stored  # called with each stored sample before it is counted
        self._changed = threading.Condition()  # guards everything here
        self._submitted = 0
        self._answers: Counter[int] = Counter()
        self.stored: list[Sample] = []
        self.dropped: Counter[str] = Counter()
        self.hits: list[Sample] = []
        self.misses: Counter[str] = Counter()
        self.wrong: list[Sample] = []  # hits with wrong bytes; must stay empty, or P1 is broken

    def store(self, sample: Sample, payload: bytes | None = None) -> None:
        """Submit a store, without waiting."""
        data = sample.payload if payload is None else payload
        source = memory.allocate(len(data))
        source[: len(data)] = data

        def done(outcome: StoreOutcome) -> None:
            if self._on_stored and isinstance(outcome, Stored):
                self._on_stored(sample)
            with self._answered(number):
                if isinstance(outcome, Stored):
                    self.stored.append(sample)
                else:
                    self.dropped[outcome.reason] += 1

        number = self._number()
        self._tier.submit_store(sample.name, source, len(data), done)

    def load(self, sample: Sample, deadline: float = FOREVER) -> None:
        """Submit a load, without waiting."""
        target = memory.allocate(sample.length)

        def done(outcome: LoadOutcome) -> None:
            with self._answered(number):
                self._judge(sample, outcome, target)

        number = self._number()
        self._tier.submit_load(sample.name, target, done, deadline)

    def wait(self, timeout_s: float = 30.0) -> None:
        """Wait until everything has its outcome, and assert that each has exactly one."""
        with self._changed:
            done = self._changed.wait_for(lambda: len(self._answers) == self._submitted, timeout_s)
            assert done, f"{self._submitted - len(self._answers)} answers are missing"
            assert set(self._answers.values()) <= {1}, "an answer came twice"
            assert not self.wrong, f"wrong bytes were served for {len(self.wrong)} records"

    def _judge(self, sample: Sample, outcome: LoadOutcome, target: memoryview) -> None:
        match outcome:
            case Miss(reason):
                self.misses[reason] += 1
            case Hit(length) if bytes(target[:length]) == sample.payload:
                self.hits.append(sample)
            case _:
                self.wrong.append(sample)

    def _number(self) -> int:
        with self._changed:
            self._submitted += 1
            return self._submitted

    @contextmanager
    def _answered(self, number: int) -> Iterator[None]:
        """Hold the lock while an outcome is recorded, then wake whoever waits for it."""
        with self._changed:
            yield
            self._answers[number] += 1
            self._changed.notify_all()
