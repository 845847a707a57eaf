"""The labels of metrics, and the values that each can have: enums, tiers, or bounded names."""

from enum import StrEnum
from typing import Final

from forebay.decisions import Decision
from forebay.tiers.contract import DropReason, EvictionCause, MissReason
from forebay.tiers.remote.accounting.ledger import RequestKind

OK: Final = "ok"  # the outcome of an operation that did what it should
DRAM: Final = "dram"  # the tier that is always there
DISK: Final = "disk"  # the tier of drives
ABSENT: Final = "absent"  # found in no tier
NAMESPACES_MAX: Final = 100  # with series of their own; the rest is "other"
NAMESPACE_DIGITS: Final = 16  # of 64 hex digits: more than enough to tell them apart


class Direction(StrEnum):
    """Which way a chunk goes."""

    LOAD = "load"  # towards the GPU
    STORE = "store"  # away from it


class RefusalReason(StrEnum):
    """Why a chunk that an engine offered was given no slot."""

    HAVE = "have"  # the pool has it
    DECLINED = "declined"  # the policy values what would leave for it more
    LATER = "later"  # everything is in use; the engine may offer it again
    ORPHAN = "orphan"  # the chunk before it is in no tier
    MALFORMED = "malformed"  # what was offered cannot be a record


class ErrorKind(StrEnum):
    """What went wrong in the pool, whether or not anybody noticed."""

    BUG = "bug"  # the barrier caught an exception
    DRAM_CORRUPT = "dram_corrupt"  # a slot does not hold what it should
    MALFORMED = "malformed"  # a connection sent what is not our protocol
    REFUSED = "refused"  # a connection or a message that is not allowed
    DISPLACED = "displaced"  # a connection gave way to another one
    CUT_OFF = "cut_off"  # a client did not read what it was sent
    UNEXPECTED = "unexpected"  # a message that makes no sense here
    IDLE_DRIVE = "idle_drive"  # an engine was sent away though a drive could have made room


class TokenSource(StrEnum):
    """Where a request's tokens came from; a tier's name stands for what was loaded from it."""

    ENGINE = "engine"  # the engine's own prefix cache
    COMPUTED = "computed"


class PreemptedSource(StrEnum):
    """What became of the tokens of a request that was preempted, when it went on."""

    LOADED = "loaded"
    RECOMPUTED = "recomputed"


# Of `remote_requests`: what a store can be asked for.
REQUEST_KINDS: Final = tuple(each.value for each in RequestKind)
LOAD_OUTCOMES: Final = (OK, *(each.value for each in MissReason if each != MissReason.NO_POOL))
STORE_OUTCOMES: Final = (OK, *(each.value for each in DropReason))
# What engines say of sharing (`engines/sharing.py`, and before they said anything); else "other".
SHARING_WORDS: Final = (
    *("sharing", "hashing_weights", "no_pool", "declined", "weights_unknown"),
    "unknown",
)
# The tiers that a pool can have; its stores are bounded by the settings.
TIERS: Final = (DRAM, DISK, "remote", "remote2 and so on for further stores")
# What the docs say of each label, or of one metric's: its values, or what they are taken from.
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
