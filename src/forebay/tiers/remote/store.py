"""The contract of a store: objects of bytes by name; nothing about records, hosts or ages.

Only a remote tier's child process uses a store, so a call that hangs, a library that aborts and a
reply that lies cost just that child. Every store promises:

* Outcomes are values: a call answers what it did, or a `StoreFailure`; none raises.
* An object is put whole or not at all, and is seen whole or not at all. Names are never used again
  for other bytes, but those of the index below `hosts/`.
* `get` writes into the buffers it is given, never more than they hold, whatever the server says.
* No call tries again by itself. Each ends within its caller's deadline or is killed with the child.
* `modified_s` is on the store's clock, which is compared with itself alone.
* Several threads may call at once.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

NAME_PARTS_MAX: Final = 8
LISTED_MAX: Final = 1 << 20  # objects in one listing; further ones are not seen
_PART: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,127}")


class StoreFailure(StrEnum):
    """Why a store did not do what it was asked to."""

    ABSENT = "absent"  # there is no such object
    FULL = "full"  # no room, or over a quota
    DENIED = "denied"  # not allowed, or not safe to use
    FAILED = "failed"  # anything else, also that it cannot be reached


class StoredObject(NamedTuple):
    """One line of a listing."""

    name: str  # last part of the name; a slash at its end means that more is below
    size_bytes: int
    modified_s: float


class ObjectStore(ABC):
    """One bucket, directory or server."""

    @abstractmethod
    def put(self, name: str, buffers: Sequence[memoryview]) -> StoreFailure | None:
        """Store the buffers, one after the other, as an object, replacing one of this name."""

    @abstractmethod
    def get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        """Fill the buffers from `at` on; the bytes read, fewer if the object ends before."""

    @abstractmethod
    def listing(self, prefix: str) -> list[StoredObject] | StoreFailure:
        """Everything right below a prefix, unsorted; empty if there is no such prefix."""

    @abstractmethod
    def delete(self, name: str) -> StoreFailure | None:
        """Delete an object; success if there is none."""


def is_name(name: str) -> bool:
    """Whether a name is valid: short parts of plain characters, none of them hidden."""
    parts = name.split("/")
    return len(parts) <= NAME_PARTS_MAX and all(map(_PART.fullmatch, parts))
