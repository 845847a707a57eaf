"""Messages between a remote tier and its child, over a pair of sockets that keeps messages apart.

Records' bytes never go over it: they lie in areas of shared memory that both have mapped, whose
descriptors come with `MAP`. A large result comes back as a memfd.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from forebay.tiers.remote.process.recovery import UnreadPack
from forebay.tiers.remote.store import StoreFailure

MESSAGE_BYTES_MAX: Final = 64 << 10


class Action(StrEnum):
    """What a child can be asked to do."""

    MAP = "map"  # the area `at` is the memfd that comes along; not answered
    UNMAP = "unmap"  # the area `at` is used no more; not answered
    PUT = "put"
    GET = "get"
    DELETE = "delete"
    PROBE = "probe"  # put an object, read it, compare
    RECOVER = "recover"  # find this host's packs, and what its index says of them
    READ_PACKS = "read_packs"  # read `packs`, of which it says nothing
    AUDIT = "audit"  # which of this host's objects are there
    # These two look at `limit` hosts per call; without results there are more to ask.
    REFRESH = "refresh"  # find other hosts' packs; `at` is the version of the snapshots known
    USED = "used"  # find what hosts use most
    # Delete what hosts left that have been dead for `at` seconds, `limit` of them watched by us.
    SWEEP = "sweep"


MAINTENANCE: Final = frozenset(
    {
        Action.PROBE,
        Action.RECOVER,
        Action.READ_PACKS,
        Action.AUDIT,
        Action.REFRESH,
        Action.USED,
        Action.SWEEP,
    }
)


class StoreRequest(msgspec.Struct, array_like=True, frozen=True):
    """One call; `number` is the caller's, unless it is not answered."""

    number: int
    action: Action
    name: str = ""
    at: int = 0
    # Area, offset, length; of maintenance: where the child notes `RequestCounts` of what it asks
    # for, so that they are known when it is killed.
    buffers: Sequence[tuple[int, int, int]] = ()
    packs: Sequence[UnreadPack] = ()
    limit: int = 0


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """How a call ended."""

    number: int
    failure: StoreFailure | None = None
    count: int = 0  # bytes, objects, or a version, depending on the action


encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(StoreRequest).decode
decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode
