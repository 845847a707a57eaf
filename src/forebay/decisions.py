"""What became of a request with respect to the pool: one enum, and one table of words for it.

The engine decides (`engines/scheduling`), the pool adds what only it knows (`REFINED_BY_POOL`),
`forebay why` and docs/why.md explain, and metrics have the values as labels. No value reveals
anything about a request's content.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Decision(StrEnum):
    """What became of a request; also the label of `requests` and of `forebay:misses`."""

    LOADED = "loaded"
    NOT_WORTH = "not_worth"
    TOO_LITTLE = "too_little"
    SHORT = "short"
    UNKNOWN = "unknown"
    OTHER_SALT = "other_salt"
    OTHER_MODEL = "other_model"
    EVICTED = "evicted"
    CLEARED = "cleared"
    CORRUPT = "corrupt"
    IO_ERROR = "io_error"
    TIER_OFF = "tier_off"
    DEADLINE = "deadline"
    NO_ROOM = "promise_too_small"
    COMPUTING_IS_FASTER = "computing_is_faster"
    STORE_IS_SLOWER = "store_is_slower"
    REQUEST_BUDGET = "request_budget"
    TOO_MANY_ASKING = "too_many_asking"
    NO_POOL = "no_pool"
    UNANSWERED = "unanswered"
    NO_PROMISE = "no_promise"
    WRONG_PROMISE = "wrong_promise"
    PAUSED = "paused"
    LOAD_FAILED = "load_failed"
    NOT_SHARED = "not_shared"
    HASHING_WEIGHTS = "hashing_weights"
    DECLINED = "declined"
    ENDED = "ended"


class Words(NamedTuple):
    """A decision in words for people."""

    what: str  # what happened, in one sentence
    advice: str = ""  # what to do about it, in one sentence; empty: nothing


# What an engine tells if it only knows that nothing, or too little, came from the pool. If the pool
# has a reason of its own, that replaces these.
REFINED_BY_POOL: Final = frozenset(
    {
        Decision.UNKNOWN,
        Decision.OTHER_SALT,
        Decision.TOO_LITTLE,
        Decision.NO_ROOM,
        Decision.LOAD_FAILED,
    }
)

WORDS: Final[dict[Decision, Words]] = {
    Decision.LOADED: Words("A prefix of the prompt was loaded from the pool."),
    Decision.NOT_WORTH: Words(
        "The engine's own prefix cache had nearly as much of the prompt as the pool."
    ),
    Decision.TOO_LITTLE: Words(
        "The pool knows less of the prompt than is worth loading (min_tokens).",
        "Lower min_tokens if such short prefixes are worth a load to you.",
    ),
    Decision.SHORT: Words(
        "The prompt's whole chunks are fewer tokens than min_tokens, so the pool was not asked.",
        "Lower min_tokens (and chunk_tokens) if short prompts repeat and are worth a load.",
    ),
    Decision.UNKNOWN: Words(
        "The beginning of the prompt was never stored, as far as the pool remembers.",
        "If it should be known: compare what changes at the beginning of your prompts, such as"
        " dates or ids, between two requests.",
    ),
    Decision.OTHER_SALT: Words(
        "The same beginning is known under another cache_salt only, and salts share nothing.",
        "Send the same cache_salt with requests that may share, or none.",
    ),
    Decision.OTHER_MODEL: Words(
        "The same beginning was asked for under another model or configuration and is not stored"
        " under this one; these share nothing.",
        "Compare the engines' weights, dtype, context length, block size and vLLM release: each"
        " combination has a namespace of its own (forebay stats).",
    ),
    Decision.EVICTED: Words(
        "The beginning of the prompt was stored and has been evicted since.",
        "Give the pool more DRAM or disk (forebay set), or see forebay plan for its size.",
    ),
    Decision.CLEARED: Words(
        "The beginning of the prompt was stored and an operator has cleared it since.",
    ),
    Decision.CORRUPT: Words(
        "A stored record no longer holds the bytes that were written; it was not used.",
        "Look at the drive's health (SMART), and run forebay check while the pool is stopped.",
    ),
    Decision.IO_ERROR: Words(
        "A drive failed to read a record.",
        "See the pool's log and the kernel's for the drive, and replace it if this goes on.",
    ),
    Decision.TIER_OFF: Words(
        "The prompt is stored on a drive that is switched off after too many errors.",
        "See the pool's log for the drive; it is tried again by itself, or at the next start.",
    ),
    Decision.DEADLINE: Words(
        "The drives did not bring the prompt's chunks within load_deadline_ms.",
        "Add DRAM or a faster drive; raise load_deadline_ms if requests may wait longer.",
    ),
    Decision.NO_ROOM: Words(
        "The pool could promise less than min_tokens: other loads had its DRAM.",
        "Give the pool more DRAM (forebay set dram=SIZE).",
    ),
    Decision.COMPUTING_IS_FASTER: Words(
        "The GPU computes this prefix sooner than the drives would bring it.",
        "Nothing is wrong; a faster drive or more DRAM moves the break-even (forebay plan"
        " breakeven).",
    ),
    Decision.STORE_IS_SLOWER: Words(
        "The GPU computes this prefix sooner than the store that holds it would bring it.",
        "Nothing is wrong; forebay remote check URL --model MODEL says from how many tokens on a"
        " hit pays.",
    ),
    Decision.REQUEST_BUDGET: Words(
        "The prompt is in a store whose requests of the day are used up.",
        "Raise requests= in the store's URL, or wait for midnight UTC (docs/remote.md).",
    ),
    Decision.TOO_MANY_ASKING: Words(
        "Too many other requests of this engine were waiting for their loads.",
        "The drives are slower than the load: add DRAM or drives.",
    ),
    Decision.NO_POOL: Words(
        "This engine had no session with a pool when the request came: the pool had gone, had not"
        " started yet, or had not been joined again. With vLLM before 0.30 and sliding windows,"
        " also: not every worker could copy what was found.",
        "See why the pool ended (its log), and let a supervisor keep it running.",
    ),
    Decision.UNANSWERED: Words(
        "The pool did not answer the lookup within lookup_deadline_ms.",
        "Look at the CPU that the pool gets: it needs a core of its own.",
    ),
    Decision.NO_PROMISE: Words(
        "The pool knew the prompt but did not promise the load within load_deadline_ms.",
        "Look whether the pool hangs, or has no CPU.",
    ),
    Decision.WRONG_PROMISE: Words(
        "The pool promised other chunks than it was asked for; they were not used.",
        "This is a bug of the pool: please report it with its log.",
    ),
    Decision.PAUSED: Words(
        "After too many failures the engine leaves the pool alone for 5 to 60 seconds.",
        "The requests before this one, and the engine's log, say which failures.",
    ),
    Decision.LOAD_FAILED: Words(
        "A load was promised and ended badly; the engine computed what was missing.",
        "The pool's log and the engine's say why.",
    ),
    Decision.NOT_SHARED: Words("Requests of this kind are not shared."),
    Decision.HASHING_WEIGHTS: Words(
        "The engine was still hashing its weights, and shares nothing until it knows them.",
        "Wait, or name the weights with weights_id.",
    ),
    Decision.DECLINED: Words("The engine cannot share with this configuration."),
    Decision.ENDED: Words("The request ended before it was scheduled."),
}


def decision_of(label: str) -> Decision | None:
    """The decision with this label; None if it is unknown."""
    return Decision._value2member_map_.get(label)  # type: ignore[return-value]
