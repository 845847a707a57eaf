"""Health: whether a record comes back from every tier, and the pool's socket answers, in time.

What was found holds for `HOLDS_S`: however often it is asked for, the tiers are probed no oftener.
A probe disturbs nobody's chunk and leaves nothing behind; see `Core.probe`.
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
SOCKET: Final = "socket"  # stands where a tier's name does


class Probed(Protocol):
    """What is probed: a running pool."""

    def probe(self, told: ProbeTold, timeout_s: float) -> list[tuple[str, int]] | None:
        """Begin; None: the pool's thread did not answer in time."""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What a check found."""

    checks: tuple[dict[str, Any], ...]  # each of a tier's volume
    at: float  # monotonic

    @property
    def is_well(self) -> bool:
        """Whether all came back exact in time."""
        return all(check["ok"] for check in self.checks)


class HealthCheck:
    """Checks one pool. Any thread may ask; the lock lets one check at a time."""

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
        self._last: HealthReport | None = None

    def report(self) -> HealthReport:
        """The last report, or a new one where that is old; within the bound."""
        with self._lock:
            if self._last is None or time.monotonic() - self._last.at > self._holds_s:
                self._last = self._check()
            return self._last

    def _check(self) -> HealthReport:
        begun = time.monotonic()
        until = begun + self._bound_s
        answers: queue.SimpleQueue[ProbeResult] = queue.SimpleQueue()
        awaited = self._pool.probe(answers.put, self._bound_s)
        if awaited is None:
            return HealthReport((_row("pool", 0, "the pool's thread does not answer"),), begun)
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
        return HealthReport(tuple(rows), begun)

    def _greet(self, until: float) -> str:
        """Say Hello at the pool's own socket, as an operator's command does; why not, if it fails.

        The pool runs in this process: its socket is trusted.
        """
        session = PoolSession(self._socket_path, Clock(), engine=secrets.token_hex(16))
        session.is_operator = True
        try:
            return "" if session.wait_until_joined(until) else session.why
        finally:
            session.close()


def _row(tier: str, volume: int, failure: str) -> dict[str, Any]:
    return {"tier": tier, "volume": volume, "ok": not failure, "why": failure}
