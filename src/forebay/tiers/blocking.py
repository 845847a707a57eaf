"""Blocking calls of tiers, for scripts, benchmarks and tests."""

import threading
import time
from typing import cast

from forebay.record.header import Digest, RecordName
from forebay.sys import memory
from forebay.tiers.contract import (
    Dropped,
    DropReason,
    LoadOutcome,
    Miss,
    MissReason,
    StoreOutcome,
    Tier,
)


class _Answer:
    """One outcome, awaited by one thread."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._outcome: object = None

    def set(self, outcome: object) -> None:
        self._outcome = outcome
        self._ready.set()

    def wait(self, timeout_s: float) -> object:
        return self._outcome if self._ready.wait(timeout_s) else None


def store(
    tier: Tier,
    name: RecordName,
    payload: bytes,
    timeout_s: float = 30.0,
    digest: Digest | None = None,
) -> StoreOutcome:
    """Store a payload and wait for the outcome; if that takes too long, it counts as dropped."""
    source = memory.allocate(len(payload))
    source[: len(payload)] = payload
    answer = _Answer()
    tier.submit_store(name, source, len(payload), answer.set, digest)
    outcome = cast("StoreOutcome | None", answer.wait(timeout_s))
    return outcome if outcome is not None else Dropped(DropReason.BUSY)


def load(
    tier: Tier,
    name: RecordName,
    length_max: int,
    timeout_s: float = 30.0,
    deadline: float | None = None,
) -> tuple[LoadOutcome, bytes]:
    """Load a payload of at most `length_max` bytes and wait for it; too late is a miss.

    `deadline` is by the tier's clock; by default it is `timeout_s` from now by the system's clock.
    """
    target = memory.allocate(length_max)
    answer = _Answer()
    deadline = time.monotonic() + timeout_s if deadline is None else deadline
    tier.submit_load(name, target, answer.set, deadline)
    outcome = cast("LoadOutcome | None", answer.wait(timeout_s))
    if outcome is None:
        return Miss(MissReason.DEADLINE), b""
    return outcome, b"" if isinstance(outcome, Miss) else bytes(target[: outcome.length])
