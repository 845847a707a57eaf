"""The labels of metrics, and the values that each can have: enums, tiers, or bounded names."""

from enum import StrEnum
from typing import Final

from forebay.decisions import Decision
from forebay.tiers.contract import DropReason, EvictionCause, MissReason
from forebay.tiers.remote.accounting.ledger import RequestKind

OK: Final = "ok"  # the outcome of an operation that succeeded
DRAM: Final = "dram"  # the tier that always exists
DISK: Final = "disk"  # the tier of drives
ABSENT: Final = "absent"  # found in no tier
NAMESPACES_MAX: Final = 100  # that have series of their own; the others count as "other"
NAMESPACE_DIGITS: Final = 16  # of 64 hex digits: more than enough to tell them apart


class Direction(StrEnum):
    """Which way a chunk goes."""

    LOAD = "load"  # towards the GPU
    STORE = "store"  # away from it


class RefusalReason(StrEnum):
    """Why a chunk that an engine offered was given no slot."""

    HAVE = "have"  # the pool already has it
    DECLINED = "declined"  # the policy prefers what would have to leave for it
    LATER = "later"  # everything is in use; the engine may offer it again
    ORPHAN = "orphan"  # the chunk before it is in no tier
    MALFORMED = "malformed"  # what was offered cannot be a record


class ErrorKind(StrEnum):
    """What went wrong in the pool, even if no user noticed it."""

    BUG = "bug"  # the barrier caught an exception
    DRAM_CORRUPT = "dram_corrupt"  # a slot does not hold what it should
    MALFORMED = "malformed"  # a connection sent something that is not our protocol
    REFUSED = "refused"  # a connection or a message that is not allowed
    DISPLACED = "displaced"  # a connection gave way to another one
    CUT_OFF = "cut_off"  # a client did not read what it was sent
    UNEXPECTED = "unexpected"  # a message that makes no sense here
    IDLE_DRIVE = "idle_drive"  # an engine was sent away though a drive could have made room


class TokenSource(StrEnum):
    """Where a request's tokens came from, beside tiers, which appear by their names."""

    ENGINE = "engine"  # the engine's own prefix cache
    COMPUTED = "computed"


class PreemptedSource(StrEnum):
    """How a preempted request got its tokens back when it continued."""

    LOADED = "loaded"
    RECOMPUTED = "recomputed"


# The kinds of `remote_requests`.
REQUEST_KINDS: Final = tuple(each.value for each in RequestKind)
LOAD_OUTCOMES: Final = (OK, *(each.value for each in MissReason if each != MissReason.NO_POOL))
STORE_OUTCOMES: Final = (OK, *(each.value for each in DropReason))
# How engines describe their sharing (`engines/sharing.py`; "unknown" until they do); else "other".
SHARING_WORDS: Final = (
    *("sharing", "hashing_weights", "no_pool", "declined", "weights_unknown"),
    "unknown",
)
# The tiers that a pool can have; the settings limit the number of stores.
TIERS: Final = (DRAM, DISK, "remote", "remote2 and so on for further stores")
# For the docs: the values of each label, or of one metric's label, or where they come from.
VALUES: Final = {
    "cause": tuple(each.value for each in EvictionCause),
    "direction": tuple(each.value for each in Direction),
    "found": (*TIERS, ABSENT),
    "kind": tuple(each.value for each in ErrorKind),
    "model": ("a model's name",),
    "namespace": (f"{NAMESPACE_DIGITS} hex digits, of the {NAMESPACES_MAX} largest", "other"),
    "outcome": tuple(dict.fromkeys((*LOAD_OUTCOMES, *STORE_OUTCOMES))),
    "requests.outcome": tuple(each.value for each in Decision),
    "tenant": ("a tenant's name", "default", "other"),
    "tenant_lookup_chunks.found": ("known", ABSENT),
    "source": (*(each.value for each in TokenSource), *TIERS),
    "preempted_tokens.source": tuple(each.value for each in PreemptedSource),
    "reason": tuple(each.value for each in RefusalReason),
    "request": REQUEST_KINDS,
    "sharing": (*SHARING_WORDS, "other"),
    "tier": TIERS,
    "healthy.tier": (*TIERS, "socket"),
    "volume": ("a directory's or store's number, from 0, in the order of /stats.json",),
}
