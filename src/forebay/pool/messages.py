"""The messages between engines and the pool: tagged MessagePack arrays, one per frame.

docs/protocol.md lists every message with golden bytes. Keys are short here (16 bytes), joined; only
`Reserve` carries full keys, because they go into the record. A slot is an offset into the slab of
the message's `generation`; a slot of another generation means nothing and is never touched.
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

PROTOCOL: Final = 6  # raised with each new message, since an unknown tag ends a connection
FRAME_BYTES_MAX: Final = 4 << 20  # 100,000 chunks of a prompt are 1.6 MB of keys
ITEMS_MAX: Final = 1 << 14  # numbers in one message; handling it keeps others waiting
KEYS_MAX: Final = 1 << 17  # keys in one lookup; likewise
SENTENCE_MAX: Final = 400
# How long a lookup's answer may wait for chunks being stored. They are committed when the step
# behind theirs is over, and that may compute another long prompt.
AWAIT_S: Final = 10.0
NAMESPACE_RULE: Final = "a namespace is named by 8 to 64 hex digits and nothing else."
_NAMESPACE: Final = re.compile(r"[0-9a-fA-F]{8,64}")
_KEYS: Final = struct.Struct(f"{SHORT_KEY_BYTES}s" * 32)  # unpacking many at once costs a fifth


MODEL_LETTERS_MAX: Final = 200
REQUEST_LETTERS_MAX: Final = 64
REQUESTS_KEPT: Final = 1000  # the last requests, which `RequestsReply` can tell
ENGINES_LISTED_MAX: Final = 100  # engines listed in `StatsReply` and `RequestsReply`
ANSWER_TOKENS_MAX: Final = 10_000_000
OUTCOMES_MAX: Final = 32  # outcomes in one message, since others wait meanwhile
TIERS_MAX: Final = 16
RUNS_MAX: Final = 1 << 12  # runs in a batch: each takes far more memory than bytes
_Items = Annotated[list[int], msgspec.Meta(max_length=ITEMS_MAX)]
_Keys = Annotated[bytes, msgspec.Meta(max_length=KEYS_MAX * SHORT_KEY_BYTES)]
_SaltHash = Annotated[bytes, msgspec.Meta(max_length=CLAIM_BYTES)]
_TenantName = Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]


class _Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An immutable message; its tag is its lower-case name."""


class Hello(_Message, frozen=True, tag="hello"):
    """The first message: who joins. Every process of one engine gives the same `engine`."""

    protocol: int
    engine: str  # random and secret: whoever knows it acts for this engine
    is_operator: bool = False  # only looks, clears and resizes: gets no slab and no loads


class Welcome(_Message, frozen=True, tag="welcome"):
    """The answer to Hello; for engines the descriptors of the slab's segments come with it."""

    protocol: int
    generation: int  # random, one for each slab
    slab_bytes: int  # addresses to reserve: the slab never grows beyond
    arena_bytes: int  # a slot never straddles a multiple of it
    segments: list[int]  # size of each, mapped one after the other
    given_back: list[int]  # numbers of arenas that are no longer used: do not touch them
    tiers: list[str] = []  # names of the tiers in `Promise` and `Ready`, by number; 0 is DRAM
    # Key for hashing salts (`salt_hash`); empty: the pool has no tenants.
    salt_key: Annotated[bytes, msgspec.Meta(max_length=SALT_KEY_BYTES)] = b""


class Grown(_Message, frozen=True, tag="grown"):
    """The slab has one more segment, after the others; its descriptor comes with this message.

    It comes unasked, before any slot in that segment is used.
    """

    generation: int
    size_bytes: int


class Refused(_Message, frozen=True, tag="refused"):
    """Why the pool ends the connection, in one sentence; nothing follows."""

    sentence: str


class Lookup(_Message, frozen=True, tag="lookup"):
    """A request has arrived and asks how much of its chain is known.

    What is known is retained, and read from lower tiers, until it is asked for, as far as there is
    room. If chunks before `awaits` are being stored, the answer waits for them, for `AWAIT_S` at
    most, and a first Found with `coming` says so at once.
    """

    request: int  # chosen by the client, unique on this connection until cancelled
    namespace: bytes
    group: int
    keys: _Keys
    local: _Keys = b""  # keys of local records; asks only whether they are there
    tag: Annotated[bytes, msgspec.Meta(max_length=TAG_BYTES)] = b""  # `prompt_tag`; empty: none
    gpu_bytes_a_s: float = 0.0  # speed at which the engine computes such KV; 0: not known
    salt_hash: _SaltHash = b""  # of the request's salt; empty, or not known: the default tenant's
    awaits: int = 0  # number of chunks that another engine has just computed


class StoreRun(_Message, frozen=True):
    """Consecutive chunks that lie in a store, and the store's speed."""

    first: int
    chunks: int
    first_ms: float  # time until the first of them would arrive
    bytes_a_s: float  # from then on; 0: not known


class Found(_Message, frozen=True, tag="found"):
    """The answer to Lookup; sent again when more is in DRAM, until the request asks."""

    request: int
    known: int  # chunks, from the first, in any tier
    ready: int  # of these, from the first, already in DRAM
    has: bytes = b""  # a bit per record of `local`, lowest first: in any tier; first time only
    stores: list[StoreRun] = []  # those of `known` that lie in stores; first time only
    coming: bool = False  # not the answer yet, which waits for chunks that are being stored


class KeyRun(_Message, frozen=True):
    """Local records of one group, asked for with the chunks of the chain."""

    group: int
    keys: _Keys


class Ask(_Message, frozen=True, tag="ask"):
    """Pin chunks [first, first + count) of a looked-up request, and promise them."""

    request: int
    first: int
    count: int
    deadline_ms: int  # after this time only what is verified is promised
    stream: bool  # promise all that is known, even if it exceeds the load budget
    local: Annotated[list[KeyRun], msgspec.Meta(max_length=RUNS_MAX)] = []  # after the chunks


class Promise(_Message, frozen=True, tag="promise"):
    """The answer to Ask: these chunks are verified and pinned until released."""

    request: int
    generation: int
    first: int
    total: int  # number of chunks promised; more than len(offsets) only in a stream
    offsets: list[int]  # offsets of chunks first, first + 1, …
    lengths: list[int]
    proof: bytes  # `proof_of` the full keys of the chunks whose offsets are here
    sources: list[int] = []  # the tier that each chunk came from; empty: all from DRAM


class Ready(_Message, frozen=True, tag="ready"):
    """One more chunk of a stream is verified and pinned.

    `length` 0 means that it failed: chunks before it may still come, none after it will.
    """

    request: int
    generation: int
    chunk: int  # its position in the chain
    offset: int
    length: int
    key: bytes  # the full key
    source: int = 0  # the tier that it came from


class Release(_Message, frozen=True, tag="release"):
    """Unpin these chunks of a promise; an empty list: all, and the request is over."""

    request: int
    chunks: _Items


class Cancel(_Message, frozen=True, tag="cancel"):
    """Forget a request in any state."""

    request: int


class Settled(_Message, frozen=True, tag="settled"):
    """The engine no longer reads anything that it was promised, on any connection so far."""

    engine: str  # its name in Hello on a lost connection


class ChunkRun(_Message, frozen=True):
    """Consecutive chunks of one chain that an engine has computed, or local records."""

    namespace: bytes
    group: int
    parent: bytes  # full key of the chunk before, or ROOT; of local groups: of the chunk itself
    keys: bytes  # full keys, joined
    length: int  # payload size of each chunk
    shards: int = 1  # equal parts of each payload, whose hashes form its digest
    salt_hash: _SaltHash = b""  # of the request's salt; empty, or not known: the default tenant's


class Reserve(_Message, frozen=True, tag="reserve"):
    """Asks for a slot for each of these chunks."""

    batch: int  # chosen by the client, returned in the answer
    runs: Annotated[list[ChunkRun], msgspec.Meta(max_length=RUNS_MAX)]


class ReserveAnswer(IntEnum):
    """A value in `Reserved.answers` that is not an offset."""

    HAVE = -1  # stored already, or being stored
    NO = -2  # refused: too large, its prefix is gone, or no tier would keep it
    LATER = -3  # no slot just now


class Reserved(_Message, frozen=True, tag="reserved"):
    """The answer to Reserve: for each key, in order, an offset or a ReserveAnswer."""

    batch: int
    generation: int
    answers: list[int]


class Commit(_Message, frozen=True, tag="commit"):
    """These slots are filled: their chunks can be found from now on.

    Whoever filled the slots has computed the digests before sending this, so bytes written there
    later, by anyone who maps the slab, do not match. A commit without one digest per slot gives the
    slots back.
    """

    generation: int
    offsets: _Items
    digests: bytes  # joined, one per slot: the payload hash as in the record


class Committed(_Message, frozen=True, tag="committed"):
    """The answer to Commit: how many of these slots were this engine's and have become chunks."""

    count: int


class Abort(_Message, frozen=True, tag="abort"):
    """These slots will not be filled, and nobody writes into them any more."""

    generation: int
    offsets: _Items


class Describe(_Message, frozen=True, tag="describe"):
    """Who this engine is and whether it shares: sent after Welcome, and when that changes."""

    model: Annotated[str, msgspec.Meta(max_length=MODEL_LETTERS_MAX)]
    engine: Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]  # program and release
    sharing: Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]  # a `SharingState`
    why: Annotated[str, msgspec.Meta(max_length=SENTENCE_MAX)]  # why it does not share, else empty
    namespace: Annotated[bytes, msgspec.Meta(max_length=32)]  # empty: not known
    chunk_tokens: int
    prefix_caching: bool = True  # whether the engine keeps what it computed itself
    gpu_cache_bytes: int = 0  # size of the KV cache on all the engine's GPUs; 0: not known

    def printable(self) -> "Describe":
        """The same with unprintable letters replaced, and cut to a length that can be told."""
        return msgspec.structs.replace(
            self,
            model=_printable(self.model),
            engine=_printable(self.engine),
            sharing=_printable(self.sharing),
            why=_printable(self.why),
        )


class Outcome(_Message, frozen=True):
    """What became of one request. Contains no token, no text and no key."""

    request: Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]  # as the engine names it
    decision: Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]  # a `Decision`
    detail: Annotated[str, msgspec.Meta(max_length=MODEL_LETTERS_MAX)]  # of it in words, or empty
    lookup: int  # number of its Lookup on this connection; 0: none
    prompt_tokens: int
    engine_tokens: int  # found in the engine's own cache
    found_tokens: int  # known to the pool, by `Found`
    loaded: Annotated[list[int], msgspec.Meta(max_length=TIERS_MAX)]  # tokens loaded, by tier
    computed_tokens: int
    lookup_ms: float
    wait_ms: float
    load_ms: float
    saved_gpu_ms: float  # estimated time to compute what was loaded; 0: not known
    was_preempted: bool
    age_ms: int = 0  # time since then, if told late since there was no pool


class RequestOutcomes(_Message, frozen=True, tag="outcomes"):
    """Outcomes of requests, each told when the engine begins to compute the request."""

    outcomes: Annotated[list[Outcome], msgspec.Meta(max_length=OUTCOMES_MAX)]


class AnswerEnd(_Message, frozen=True):
    """How one answer ended, and its caller's hints for the dialog. No token and no text.

    Classes are those of `forebay.identity.endings`; a class out of bounds counts as not given.
    """

    key: Annotated[bytes, msgspec.Meta(max_length=SHORT_KEY_BYTES)]  # the last key of its `Lookup`
    ending: int  # its class
    after: int  # class of the answer before its prompt's new part; 0: not known
    answer_tokens: int
    duration_ms: int  # since its request arrived
    age_ms: int = 0  # since then
    salt_hash: _SaltHash = b""  # hash of the request's salt, as in `Lookup`
    session: Annotated[bytes, msgspec.Meta(max_length=SESSION_BYTES)] = b""  # a hash; empty: none
    returns_in_s: float = 0.0  # 0: no hint
    keep_s: float = 0.0
    priority: int = 0
    stores: bool = True  # False: the caller wanted nothing of it stored

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
    """Asks for the last requests, among those that are kept."""

    request: Annotated[str, msgspec.Meta(max_length=REQUEST_LETTERS_MAX)]  # begins so; "": any
    last: int  # at most so many, the latest
    after: int  # only those with a higher number; 0: any


class RequestsReply(_Message, frozen=True, tag="requests_reply"):
    """The answer to RequestsQuery: a JSON object, as `forebay why --json` prints it."""

    json: bytes


class StatsQuery(_Message, frozen=True, tag="stats"):
    """Asks for the pool's figures."""


class StatsReply(_Message, frozen=True, tag="stats_reply"):
    """The answer to StatsQuery: a JSON object, as `forebay stats --json` prints it."""

    json: bytes


class Resize(_Message, frozen=True, tag="resize"):
    """New caps; -1 leaves one as it is. Directories are named as they were at start."""

    dram_bytes: int
    disk: Annotated[list[tuple[str, int]], msgspec.Meta(max_length=RUNS_MAX)]


class Clear(_Message, frozen=True, tag="clear"):
    """Delete the records of a namespace, named by its first 8 to 64 hex digits, or all."""

    namespace: str | None  # None: all
    scrub: bool = False  # write over what is deleted, and flush


class TenantRow(_Message, frozen=True):
    """One tenant of the settings; -1 means no cap."""

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
    """Replace the pool's tenants by these."""

    tenants: Annotated[list[TenantRow], msgspec.Meta(max_length=TENANTS_MAX)]


class Forget(_Message, frozen=True, tag="forget"):
    """Delete everything of a tenant, in every tier; answered when it is gone."""

    tenant: _TenantName
    scrub: bool = False  # write over what is deleted, and flush


class Rotate(_Message, frozen=True, tag="rotate"):
    """Read the encryption keys again, and encrypt new records under new ones."""


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
    """The same tenant as a table of a settings file, so that the same rules check it."""
    salts = [row.salts[at : at + CLAIM_BYTES].hex() for at in range(0, len(row.salts), CLAIM_BYTES)]
    table: dict[str, object] = {"name": row.name, "salts": salts, "weight": row.weight}
    table |= {"dram_floor": row.dram_floor, "disk_floor": row.disk_floor}
    table |= {"remote_floor": row.remote_floor}
    caps = {"dram_cap": row.dram_cap, "disk_cap": row.disk_cap, "remote_cap": row.remote_cap}
    return table | {name: cap for name, cap in caps.items() if cap != -1}


def in_batches(items: list[int]) -> Iterator[list[int]]:
    """Lists of as many numbers as one message may have."""
    return (items[at : at + ITEMS_MAX] for at in range(0, len(items), ITEMS_MAX))


def is_namespace(digits: str) -> bool:
    """Whether these are the first hex digits of a namespace, enough of them and no others."""
    return _NAMESPACE.fullmatch(digits) is not None


def short_keys(joined: bytes) -> list[bytes]:
    """The short keys joined in a message; a remainder that is no key is ignored."""
    whole = len(joined) - len(joined) % _KEYS.size
    keys = [key for keys in _KEYS.iter_unpack(joined[:whole]) for key in keys]
    size = SHORT_KEY_BYTES
    keys += [joined[at : at + size] for at in range(whole, len(joined) - size + 1, size)]
    return keys


# Messages of operators, who wait for AdminReply.
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
