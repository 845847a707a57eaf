"""What an engine and the pool say to each other: tagged MessagePack arrays, one a frame.

docs/protocol.md has every message with golden bytes. Keys are 16 bytes here (`short`), joined; only
`Reserve` carries all 32, because they go into the record. A slot is an offset in the slab of the
message's `generation`; a slot of another generation means nothing and is never touched.
"""

import re
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated, Final

import msgspec

from forebay.identity.endings import (
    SESSION_BYTES,
    bounded_class,
    bounded_priority,
    bounded_seconds,
)
from forebay.identity.keys import TAG_BYTES
from forebay.identity.tenants import CLAIM_BYTES, SALT_KEY_BYTES
from forebay.record.region import SHORT_KEY_BYTES
from forebay.tenants import MEDIA, SALTS_MAX, TENANTS_MAX, TenantSetting

PROTOCOL: Final = 6  # a message more is a number more: an unknown tag ends a connection
FRAME_BYTES_MAX: Final = 4 << 20  # 100,000 chunks of a prompt are 1.6 MB of keys
ITEMS_MAX: Final = 1 << 14  # numbers in one message: one that takes long keeps others waiting
KEYS_MAX: Final = 1 << 17  # likewise, of a lookup
SENTENCE_MAX: Final = 400
# That a lookup's answer may wait for chunks that are being stored. They are committed when the step
# behind theirs is over, and that may compute another long prompt.
AWAIT_S: Final = 10.0
NAMESPACE_RULE: Final = "a namespace is named by 8 to 64 hex digits and nothing else."
_NAMESPACE: Final = re.compile(r"[0-9a-fA-F]{8,64}")
_KEYS: Final = struct.Struct(f"{SHORT_KEY_BYTES}s" * 32)  # many at once cost a fifth each


MODEL_LETTERS_MAX: Final = 200
REQUEST_LETTERS_MAX: Final = 64
REQUESTS_KEPT: Final = 1000  # that `RequestsReply` can tell of, the last ones
ENGINES_LISTED_MAX: Final = 100  # in `StatsReply` and `RequestsReply`; of others, how many
ANSWER_TOKENS_MAX: Final = 10_000_000
OUTCOMES_MAX: Final = 32  # in one message: others wait meanwhile
TIERS_MAX: Final = 16
RUNS_MAX: Final = 1 << 12  # of a batch: each costs far more memory than bytes of a message
_Items = Annotated[list[int], msgspec.Meta(max_length=ITEMS_MAX)]
_Keys = Annotated[bytes, msgspec.Meta(max_length=KEYS_MAX * SHORT_KEY_BYTES)]
_SaltHash = Annotated[bytes, msgspec.Meta(max_length=CLAIM_BYTES)]
_TenantName = Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]


class _Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An immutable message; its tag is its lower-case name."""


class Hello(_Message, frozen=True, tag="hello"):
    """First of all: who joins. Every process of one engine says the same `engine`."""

    protocol: int
    engine: str  # random, and told to nobody else: whoever says it acts for this engine
    is_operator: bool = False  # wants to look, clear and resize: gets no slab, and no loads


class Welcome(_Message, frozen=True, tag="welcome"):
    """The answer to Hello; engines get the descriptors of the slab's segments with it, in order."""

    protocol: int
    generation: int  # of the slab, random
    slab_bytes: int  # addresses to keep for it: it never becomes larger
    arena_bytes: int  # a slot never straddles a multiple of it
    segments: list[int]  # bytes of each, mapped one behind the other
    given_back: list[int]  # arenas, by number, that are not used any more: touch none of them
    tiers: list[str] = []  # what the numbers of tiers in `Promise` and `Ready` mean; 0 is DRAM
    # What salts are hashed with (`salt_hash`); empty: the pool has no tenants.
    salt_key: Annotated[bytes, msgspec.Meta(max_length=SALT_KEY_BYTES)] = b""


class Grown(_Message, frozen=True, tag="grown"):
    """The slab has one more segment, behind the others; its descriptor comes with it.

    It comes unasked, before any slot in that segment is named.
    """

    generation: int
    size_bytes: int


class Refused(_Message, frozen=True, tag="refused"):
    """Why the pool hangs up, in one sentence; the connection ends behind it."""

    sentence: str


class Lookup(_Message, frozen=True, tag="lookup"):
    """A request arrived, and wants to hear how much of its chain is known.

    What is known is kept, and read from disk, until it is asked for, as far as there is room. While
    chunks before `awaits` are being stored, the answer waits for them, for `AWAIT_S` at most, and
    another says so at once.
    """

    request: int  # chosen by the client, unique on this connection until cancelled
    namespace: bytes
    group: int
    keys: _Keys
    local: _Keys = b""  # of records that stand alone: only whether they are there is wanted
    tag: Annotated[bytes, msgspec.Meta(max_length=TAG_BYTES)] = b""  # `prompt_tag`; empty: none
    gpu_bytes_a_s: float = 0.0  # how fast the engine computes such KV; 0: not known
    salt_hash: _SaltHash = b""  # of the request's salt; empty, or not known: the default tenant's
    awaits: int = 0  # so many chunks, from the first, another engine has just computed


class StoreRun(_Message, frozen=True):
    """Successive chunks that lie in a store, and how fast that store is."""

    first: int
    chunks: int
    first_ms: float  # until the first of them would be here
    bytes_a_s: float  # from then on; 0: not known


class Found(_Message, frozen=True, tag="found"):
    """The answer to Lookup; it comes again, until the request asks, when more of it is ready."""

    request: int
    known: int  # chunks, from the first, in any tier
    ready: int  # of these, from the first, already in DRAM
    has: bytes = (
        b""  # a bit for each of `local`, the lowest first: in any tier; the first time only
    )
    stores: list[StoreRun] = []  # of `known`, those that lie in stores; the first time only
    coming: bool = False  # this is not the answer: it waits for chunks that are being stored


class KeyRun(_Message, frozen=True):
    """Records of another group than the chain's, which stand alone."""

    group: int
    keys: _Keys


class Ask(_Message, frozen=True, tag="ask"):
    """Pin chunks [first, first + count) of a request that was looked up, and promise them."""

    request: int
    first: int
    count: int
    deadline_ms: int  # then the promise is cut to what is verified
    stream: bool  # promise all that is known, even more than the load budget holds at once
    local: Annotated[list[KeyRun], msgspec.Meta(max_length=RUNS_MAX)] = []  # follow the chunks


class Promise(_Message, frozen=True, tag="promise"):
    """The answer to Ask: these chunks are verified and pinned until released."""

    request: int
    generation: int
    first: int
    total: int  # chunks promised; more than len(offsets) only in a stream
    offsets: list[int]  # of chunks first, first + 1, …
    lengths: list[int]
    proof: bytes  # `proof_of` the full keys of the chunks whose offsets are here
    sources: list[int] = []  # the tier that each of these was in; empty: all in DRAM


class Ready(_Message, frozen=True, tag="ready"):
    """In a stream: one more chunk is verified and pinned.

    `length` 0 means that it failed: chunks before it may still come, none behind it will.
    """

    request: int
    generation: int
    chunk: int  # its position in the chain
    offset: int
    length: int
    key: bytes  # the full key
    source: int = 0  # the tier that it was in


class Release(_Message, frozen=True, tag="release"):
    """Unpin chunks of a promise; none named: all of them, and the request is forgotten."""

    request: int
    chunks: _Items


class Cancel(_Message, frozen=True, tag="cancel"):
    """Forget a request in whatever state it is."""

    request: int


class Settled(_Message, frozen=True, tag="settled"):
    """The engine has stopped reading all that it was promised, on any connection so far."""

    engine: str  # as it said in Hello, on a connection that was lost


class ChunkRun(_Message, frozen=True):
    """Successive chunks of one chain that an engine has computed, or records that stand alone."""

    namespace: bytes
    group: int
    parent: bytes  # full key of the chunk before, or ROOT; of groups but 0: of the chunk itself
    keys: bytes  # full keys, joined
    length: int  # payload bytes of each chunk
    shards: int = 1  # equal parts of each, whose hashes its digest is made of
    salt_hash: _SaltHash = b""  # of the request's salt; empty, or not known: the default tenant's


class Reserve(_Message, frozen=True, tag="reserve"):
    """Slots wanted for these chunks."""

    batch: int  # chosen by the client; comes back
    runs: Annotated[list[ChunkRun], msgspec.Meta(max_length=RUNS_MAX)]


class ReserveAnswer(IntEnum):
    """What stands in `Reserved.answers` where there is no offset."""

    HAVE = -1  # stored already, or being stored
    NO = -2  # not wanted: too large, its prefix is gone, or no tier would keep it
    LATER = -3  # no slot just now


class Reserved(_Message, frozen=True, tag="reserved"):
    """The answer to Reserve: an offset, or a ReserveAnswer, for every key in order."""

    batch: int
    generation: int
    answers: list[int]


class Commit(_Message, frozen=True, tag="commit"):
    """These reserved slots are filled; their chunks can be found from now on.

    The digests are computed by whoever filled the slots, before this is said: what is written
    there afterwards, by anyone who maps the slab, does not have them. A commit without a digest for
    each slot gives the slots back.
    """

    generation: int
    offsets: _Items
    digests: bytes  # joined, one a slot: the payload hash as it stands in a record


class Committed(_Message, frozen=True, tag="committed"):
    """The answer to Commit: how many of the offsets were this engine's and are now chunks."""

    count: int


class Abort(_Message, frozen=True, tag="abort"):
    """These reserved slots will not be filled, and are not written any more."""

    generation: int
    offsets: _Items


class Describe(_Message, frozen=True, tag="describe"):
    """Who this engine is and whether it shares: after Welcome, and again when it changes."""

    model: Annotated[str, msgspec.Meta(max_length=MODEL_LETTERS_MAX)]
    engine: Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]  # program and release
    sharing: Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]  # a `SharingState`
    why: Annotated[str, msgspec.Meta(max_length=SENTENCE_MAX)]  # it does not share; else empty
    namespace: Annotated[bytes, msgspec.Meta(max_length=32)]  # empty: not known
    chunk_tokens: int
    prefix_caching: bool = True  # whether the engine keeps what it computed itself
    gpu_cache_bytes: int = 0  # of KV that the engine's GPUs hold, all together; 0: not known

    def printable(self) -> "Describe":
        """The same in letters that can be printed, of a length that can be told from theirs."""
        return msgspec.structs.replace(
            self,
            model=_printable(self.model),
            engine=_printable(self.engine),
            sharing=_printable(self.sharing),
            why=_printable(self.why),
        )


class Outcome(_Message, frozen=True):
    """The fate of one request. It holds no token, no text and no key."""

    request: Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]  # as the engine names it
    decision: Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]  # a `Decision`
    detail: Annotated[str, msgspec.Meta(max_length=MODEL_LETTERS_MAX)]  # of it in words, or empty
    lookup: int  # its `Lookup.request` on this connection; 0: none
    prompt_tokens: int
    engine_tokens: int  # that the engine had itself
    found_tokens: int  # that the pool knew, by `Found`
    loaded: Annotated[list[int], msgspec.Meta(max_length=TIERS_MAX)]  # tokens by tier
    computed_tokens: int
    lookup_ms: float
    wait_ms: float
    load_ms: float
    saved_gpu_ms: float  # an estimate: to compute what was loaded; 0: not known
    was_preempted: bool
    age_ms: int = 0  # since then: told late, for there was no pool


class RequestOutcomes(_Message, frozen=True, tag="outcomes"):
    """What became of requests with respect to the pool, each told when the engine computes it."""

    outcomes: Annotated[list[Outcome], msgspec.Meta(max_length=OUTCOMES_MAX)]


class AnswerEnd(_Message, frozen=True):
    """How one answer ended, and what its caller said of the dialog. It holds no token and no text.

    Classes are those of `forebay.identity.endings`; what is beyond its bounds counts as not said.
    """

    key: Annotated[bytes, msgspec.Meta(max_length=SHORT_KEY_BYTES)]  # the last of its `Lookup`
    ending: int  # its class
    after: int  # the class of the answer that its prompt's new part follows; 0: not known
    answer_tokens: int
    duration_ms: int  # since its request arrived
    age_ms: int = 0  # since then
    salt_hash: _SaltHash = b""  # as in `Lookup`
    session: Annotated[bytes, msgspec.Meta(max_length=SESSION_BYTES)] = b""  # a hash; empty: none
    returns_in_s: float = 0.0  # 0: not said
    keep_s: float = 0.0
    priority: int = 0

    def bounded(self) -> "AnswerEnd":
        """The same with every number within its bounds."""
        return msgspec.structs.replace(
            self,
            ending=bounded_class(self.ending),
            after=bounded_class(self.after),
            answer_tokens=min(max(0, self.answer_tokens), ANSWER_TOKENS_MAX),
            duration_ms=int(1000 * bounded_seconds(self.duration_ms / 1000)),
            age_ms=int(1000 * bounded_seconds(self.age_ms / 1000)),
            returns_in_s=bounded_seconds(self.returns_in_s),
            keep_s=bounded_seconds(self.keep_s),
            priority=bounded_priority(self.priority),
        )


class AnswersEnded(_Message, frozen=True, tag="ended"):
    """Answers of requests that were looked up have ended."""

    ends: Annotated[list[AnswerEnd], msgspec.Meta(max_length=OUTCOMES_MAX)]


class RequestsQuery(_Message, frozen=True, tag="requests"):
    """The last requests wanted, of those kept."""

    request: Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]  # begins so; "": any
    last: int  # so many at most, the latest
    after: int  # only those with a higher number; 0: any


class RequestsReply(_Message, frozen=True, tag="requests_reply"):
    """The answer to RequestsQuery: a JSON object, as `forebay why --json` prints it."""

    json: bytes


class StatsQuery(_Message, frozen=True, tag="stats"):
    """Numbers wanted."""


class StatsReply(_Message, frozen=True, tag="stats_reply"):
    """The answer to StatsQuery: a JSON object, as `forebay stats --json` prints it."""

    json: bytes


class Resize(_Message, frozen=True, tag="resize"):
    """New caps; -1 leaves one as it is. Directories are named as they were at start."""

    dram_bytes: int
    disk: Annotated[list[tuple[str, int]], msgspec.Meta(max_length=RUNS_MAX)]


class Clear(_Message, frozen=True, tag="clear"):
    """Delete the records of a namespace, named by its first 8 to 64 hex digits, or of all."""

    namespace: str | None  # None: all
    scrub: bool = False  # write over what is deleted, and flush


class TenantRow(_Message, frozen=True):
    """One tenant as settings have it; -1 is no cap."""

    name: _TenantName
    salts: Annotated[bytes, msgspec.Meta(max_length=SALTS_MAX * CLAIM_BYTES)]  # hashes, joined
    dram_floor: int
    dram_cap: int
    disk_floor: int
    disk_cap: int
    weight: int
    remote_floor: int = 0
    remote_cap: int = -1


class SetTenants(_Message, frozen=True, tag="set_tenants"):
    """These tenants from now on, instead of those that the pool has."""

    tenants: Annotated[list[TenantRow], msgspec.Meta(max_length=TENANTS_MAX)]


class Forget(_Message, frozen=True, tag="forget"):
    """Delete all that is a tenant's, everywhere, for good; answered when it is gone."""

    tenant: _TenantName
    scrub: bool = False  # write over what is deleted, and flush


class Rotate(_Message, frozen=True, tag="rotate"):
    """Read the keys of encrypted records again, and write new ones under new keys."""


class AdminReply(_Message, frozen=True, tag="done"):
    """The answer to Resize, Clear, SetTenants, Forget and Rotate: what was done, or why not."""

    ok: bool
    sentence: str


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def row_of(tenant: TenantSetting) -> TenantRow:
    """A tenant as a message has it."""
    dram, disk, remote = (
        (floor, -1 if cap is None else cap) for floor, cap in map(tenant.bounds, MEDIA)
    )
    return TenantRow(tenant.name, b"".join(tenant.salts), *dram, *disk, tenant.weight, *remote)


def setting_of(row: TenantRow) -> dict[str, object]:
    """The table of a file that says the same, to be judged by the same rules."""
    salts = [row.salts[at : at + CLAIM_BYTES].hex() for at in range(0, len(row.salts), CLAIM_BYTES)]
    table: dict[str, object] = {"name": row.name, "salts": salts, "weight": row.weight}
    table |= {"dram_floor": row.dram_floor, "disk_floor": row.disk_floor}
    table |= {"remote_floor": row.remote_floor}
    caps = {"dram_cap": row.dram_cap, "disk_cap": row.disk_cap, "remote_cap": row.remote_cap}
    return table | {name: cap for name, cap in caps.items() if cap != -1}


def in_batches(items: list[int]) -> Iterator[list[int]]:
    """As many at a time as one message may have."""
    return (items[at : at + ITEMS_MAX] for at in range(0, len(items), ITEMS_MAX))


def is_namespace(digits: str) -> bool:
    """Whether this names a namespace, or several that begin so, and nothing else."""
    return _NAMESPACE.fullmatch(digits) is not None


def short_keys(joined: bytes) -> list[bytes]:
    """The short keys that stand joined in a message; a rest that is no key is left out."""
    whole = len(joined) - len(joined) % _KEYS.size
    keys = [key for keys in _KEYS.iter_unpack(joined[:whole]) for key in keys]
    size = SHORT_KEY_BYTES
    keys += [joined[at : at + size] for at in range(whole, len(joined) - size + 1, size)]
    return keys


# Of operators, who wait for AdminReply.
AdminMessage = Resize | Clear | SetTenants | Forget | Rotate
ClientMessage = (
    Hello
    | Lookup
    | Ask
    | Release
    | Cancel
    | Settled
    | Reserve
    | Commit
    | Abort
    | Describe
    | RequestOutcomes
    | AnswersEnded
    | RequestsQuery
    | StatsQuery
    | Resize
    | Rotate
    | Clear
    | SetTenants
    | Forget
)
PoolMessage = (
    Welcome
    | Grown
    | Refused
    | Found
    | Promise
    | Ready
    | Reserved
    | Committed
    | RequestsReply
    | StatsReply
    | AdminReply
)
