"""Whose turn it is: bandwidth shared among tenants by weight (deficit round robin).

A tenant with something to do is served until it has had `QUANTUM_BYTES` times its weight, then the
next one is. Whatever it was served beyond that is taken off its next turn, so sizes need not be
known in advance. A tenant with nothing to do loses its turn and saves nothing up. Not thread-safe.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from forebay.record.header import DEFAULT_TENANT

QUANTUM_BYTES: Final = 1 << 16  # small: whose turn it is matters more than long runs
Job = TypeVar("Job")


class Turns:
    """Tenants that have something to do, in turn."""

    def __init__(self, weight_of: Callable[[bytes], int]) -> None:
        self._weight_of = weight_of
        self._left: dict[bytes, int] = {}  # bytes left of a turn; who is being served comes first

    def join(self, tenant: bytes) -> None:
        """A tenant has something to do; does nothing if it had already."""
        if tenant not in self._left:
            self._left[tenant] = 0

    def leave(self, tenant: bytes) -> None:
        """A tenant has nothing more to do."""
        self._left.pop(tenant, None)

    def current(self) -> bytes | None:
        """The tenant whose turn it is; None if none has anything to do."""
        if len(self._left) == 1:  # the usual case, without tenants
            return next(iter(self._left))
        while self._left:
            for tenant in list(self._left):
                if self._left[tenant] > 0:
                    return tenant
                self._left[tenant] = self._left.pop(tenant) + self._turn_bytes(tenant)
            self._skip()
        return None

    def served(self, tenant: bytes, size_bytes: int) -> None:
        """A tenant was served so many bytes."""
        if len(self._left) > 1 and tenant in self._left:  # a tenant that is alone is not charged
            self._left[tenant] -= size_bytes

    def _skip(self) -> None:
        """Skip rounds in which nobody could be served, as after a large item."""
        rounds = min(-left // self._turn_bytes(each) for each, left in self._left.items())
        for tenant in self._left:
            self._left[tenant] += max(0, rounds) * self._turn_bytes(tenant)

    def _turn_bytes(self, tenant: bytes) -> int:
        return QUANTUM_BYTES * self._weight_of(tenant)


class FairQueue(Generic[Job]):
    """Jobs of each tenant in order, and the tenants in turn."""

    def __init__(self) -> None:
        self._weights: dict[bytes, int] = {}
        self._turns = Turns(lambda tenant: self._weights.get(tenant, 1))
        self._jobs: dict[bytes, deque[tuple[Job, int]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Job]:
        return (job for jobs in self._jobs.values() for job, _ in jobs)

    def weigh(self, weights: dict[bytes, int]) -> None:
        """Set tenants' weights; one that is not named has 1."""
        self._weights = weights

    def put(self, job: Job, size_bytes: int, tenant: bytes = DEFAULT_TENANT) -> None:
        """A tenant has one more job."""
        self._jobs.setdefault(tenant, deque()).append((job, size_bytes))
        self._turns.join(tenant)
        self._count += 1

    def take(self) -> Job:
        """The next job; there must be one."""
        tenant = self._turns.current()
        assert tenant is not None, "the queue is empty"
        jobs = self._jobs[tenant]
        job, size_bytes = jobs.popleft()
        self._turns.served(tenant, size_bytes)
        self._ended(tenant)
        self._count -= 1
        return job

    def remove(self, is_over: Callable[[Job], bool]) -> list[Job]:
        """Remove and return all jobs for which this is true."""
        removed = [job for job in self if is_over(job)]
        for tenant in list(self._jobs) if removed else ():
            kept = deque(each for each in self._jobs[tenant] if not is_over(each[0]))
            self._jobs[tenant] = kept
            self._ended(tenant)
        self._count -= len(removed)
        return removed

    def _ended(self, tenant: bytes) -> None:
        if not self._jobs[tenant]:
            del self._jobs[tenant]
            self._turns.leave(tenant)
