"""Health: whether a record comes back from every tier, and the pool's socket answers, in time.

A report is valid for `HOLDS_S`: however often it is asked for, and however long a check takes, the
tiers are probed no more often. No caller waits for more than one check. A probe affects no chunks
and leaves nothing behind; see `Core.probe`.
"""

import queue
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

from forebay.pool.client.session import PoolSession
from forebay.pool.session import ProbeResult, ProbeTold
from forebay.sys.clock import Clock

BOUND_S: Final = 5.0  # for all probes together; a tier that takes longer fails
HOLDS_S: Final = 5.0
WATCHED_S: Final = 30.0  # between two checks for metrics alone
SOCKET: Final = "socket"  # takes the place of a tier's name
_MARGIN_S: Final = 1.0  # for a check that exceeds its bound
_GOES_ON: Final = "a check goes on and has not ended in time"


class Probed(Protocol):
    """A running pool, as far as it is probed."""

    def probe(self, told: ProbeTold, timeout_s: float) -> list[tuple[str, int]] | None:
        """Start a probe of every volume; None if the pool's thread does not answer in time."""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The result of a check."""

    checks: tuple[dict[str, Any], ...]  # one per volume of a tier
    at: float  # when the check ended, by the monotonic clock

    @property
    def is_well(self) -> bool:
        """Whether every check succeeded in time."""
        return all(check["ok"] for check in self.checks)


class HealthCheck:
    """Checks one pool. Any thread may call; the lock admits one check at a time."""

    def __init__(
        self,
        pool: Probed,
        socket_path: str,
        bound_s: float = BOUND_S,
        holds_s: float = HOLDS_S,
    ) -> None:
        self._pool, self._socket_path = pool, socket_path
        self._bound_s, self._holds_s = bound_s, holds_s
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()  # held while a thread of `refresh` runs
        self._last: HealthReport | None = None

    def report(self) -> HealthReport:
        """The last report, or a new one if that is too old; returns within about the bound.

        If another caller's check does not end in time, the report says so, and is not well either.
        """
        if not self._lock.acquire(timeout=self._bound_s + _MARGIN_S):
            return HealthReport((_row("pool", 0, _GOES_ON),), time.monotonic())
        try:
            if self._last is None or time.monotonic() - self._last.at > self._holds_s:
                self._last = HealthReport(self._check(), time.monotonic())
            return self._last
        finally:
            self._lock.release()

    def refresh(self) -> None:
        """Start a check, unless there was one lately; does not wait."""
        last = self._last
        if last is not None and time.monotonic() - last.at < WATCHED_S:
            return
        if self._refreshing.acquire(blocking=False):
            try:
                threading.Thread(target=self._refresh, name="forebay-health", daemon=True).start()
            except RuntimeError:  # the system has no thread for us now
                self._refreshing.release()

    def _refresh(self) -> None:
        try:
            self.report()
        finally:
            self._refreshing.release()

    def series(self) -> list[list[Any]]:
        """The values of the metric `healthy` from the last report; empty if there is none."""
        checks = self._last.checks if self._last is not None else ()
        return [
            [{"tier": check["tier"], "volume": str(check["volume"])}, int(check["ok"])]
            for check in checks
        ]

    def _check(self) -> tuple[dict[str, Any], ...]:
        until = time.monotonic() + self._bound_s
        answers: queue.SimpleQueue[ProbeResult] = queue.SimpleQueue()
        awaited = self._pool.probe(answers.put, self._bound_s)
        if awaited is None:
            return (_row("pool", 0, "the pool's thread does not answer"),)
        rows = [_row(SOCKET, 0, self._greet(until))]
        missing = dict.fromkeys(awaited)
        while missing:
            try:
                told = answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            missing.pop((told.tier, told.volume), None)
            rows.append(_row(*told))
        late = f"not done within {self._bound_s:g} s"
        rows += [_row(tier, volume, late) for tier, volume in missing]
        return tuple(rows)

    def _greet(self, until: float) -> str:
        """Join at the pool's own socket, as an operator's command does; returns why that failed.

        The pool runs in this process, so its socket is trusted.
        """
        session = PoolSession(self._socket_path, Clock(), engine=secrets.token_hex(16))
        session.is_operator = True
        try:
            return "" if session.wait_until_joined(until) else session.why
        finally:
            session.close()


def _row(tier: str, volume: int, failure: str) -> dict[str, Any]:
    return {"tier": tier, "volume": volume, "ok": not failure, "why": failure}
