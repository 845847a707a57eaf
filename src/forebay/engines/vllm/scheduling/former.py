"""Memberships that were lost: what the workers still read of what was promised in them.

The pool may be the same one, and pins what it promised to a former name until it hears `Settled` of
that name: said when all parts that the workers were told of are over, and said again after every
join, since a connection may be lost with it.
"""

from collections.abc import Iterable
from typing import Final

from forebay.engines.vllm.scheduling.membership import Membership
from forebay.pool.messages import Settled

_NAMES_MAX: Final = 16  # of older ones the pool hears when we exit


class Former:
    """Names that this engine had in a pool. Owned by the scheduler's thread."""

    def __init__(self, pool: Membership) -> None:
        self._pool = pool
        self._reading: dict[str, set[int]] = {}  # a name → parts, by serial, that are not over

    @property
    def is_reading(self) -> bool:
        """Whether a worker may still read what was promised to a former name."""
        return any(self._reading.values())

    def lost(self, name: str, serials: Iterable[int]) -> None:
        """A membership is over, in which the workers were told of these parts."""
        self._reading[name] = set(serials)
        while len(self._reading) > _NAMES_MAX:
            del self._reading[next(iter(self._reading))]

    def joined(self) -> None:
        """A pool hears of every former name under which nothing is read."""
        for name, serials in self._reading.items():
            if not serials:
                self._pool.post(Settled(name))

    def over(self, serial: int) -> None:
        """A worker reads a part no more; with the last of a name's, the pool hears of it."""
        for name, serials in self._reading.items():
            if serial in serials:
                serials.remove(serial)
                if not serials and self._pool.is_member:
                    self._pool.post(Settled(name))
