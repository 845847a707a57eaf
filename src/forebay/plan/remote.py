"""When a hit in a store pays, and what the store costs a day.

A hit pays if loading it takes less time than computing it, and, if the GPU's time has a price, if
its GETs cost less than the time that they save. What is asked for again is sent to a store, in
packs; a hit reads one record per chunk.
"""

import math
from dataclasses import dataclass
from typing import Final

from forebay.plan.breakeven import KvSource, SourceBreakeven, breakeven
from forebay.plan.model.shape import Shape
from forebay.plan.number import real, whole
from forebay.terms import StorePrices
from forebay.tiers.remote.options import RemoteOptions

OPTIONS: Final = RemoteOptions()  # those that pools use
_DAY_S: Final = 86_400.0
_PROMPTS_MAX: Final = 10**12
_HOSTS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class StoreLoad:
    """How much hosts use a store in a day."""

    prompts: int = 100_000  # of all hosts
    prompt_tokens: int = 8192  # of each, the history included
    hit_share: float = 0.2  # share of the prompts' tokens that come from the store
    sent_share: float = 0.1  # share of the prompts' tokens that are sent to the store
    days_kept: float = 3.0  # until a pack is evicted
    hosts: int = 4
    chunk_tokens: int = 256
    gpu_dollars_h: float = 3.0  # of the GPUs that compute one prompt

    def __post_init__(self) -> None:
        whole("prompts", self.prompts, most=_PROMPTS_MAX)
        whole("prompt_tokens", self.prompt_tokens, most=10**8)
        whole("hosts", self.hosts, most=_HOSTS_MAX)
        whole("chunk_tokens", self.chunk_tokens, most=10**6)
        for name in ("hit_share", "sent_share"):
            real(name, getattr(self, name), most=1.0, zero=True)
        real("days_kept", self.days_kept, most=3650)
        real("gpu_dollars_h", self.gpu_dollars_h, most=1e6, zero=True)


@dataclass(frozen=True, slots=True)
class StorePlan:
    """A store compared with recomputing."""

    pays: SourceBreakeven
    prefill_tps: float
    recompute_ms: float  # of one prompt
    puts_a_day: float
    gets_a_day: float
    lists_a_day: float
    read_bytes_a_day: float
    sent_bytes_a_day: float
    stored_bytes: float
    dollars_a_day: float
    saved_gpu_hours_a_day: float
    saved_dollars_a_day: float  # the price of these GPU hours
    even_share: float | None  # share of tokens from the store at which both cost the same


def store_plan(
    shape: Shape, prefill_tps: float, store: KvSource, prices: StorePrices, load: StoreLoad
) -> StorePlan:
    """When a hit pays for this model, and a day's requests, bytes and dollars."""
    found = breakeven(shape, prefill_tps, load.prompt_tokens, [store])
    tokens = load.prompts * load.prompt_tokens
    hit_tokens, sent_tokens = load.hit_share * tokens, load.sent_share * tokens
    chunk_bytes = shape.token_bytes * load.chunk_tokens
    read_bytes = hit_tokens * shape.token_bytes
    sent_bytes = sent_tokens * shape.token_bytes
    looks = load.hosts * _DAY_S / OPTIONS.refresh_s
    hit_gets = read_bytes / chunk_bytes if chunk_bytes else 0.0
    looking_gets = looks * (load.hosts - 1)
    packs = math.ceil(sent_bytes / OPTIONS.pack_bytes)
    puts = packs + min(packs, load.hosts * _DAY_S / OPTIONS.publish_s)
    stored_bytes = sent_bytes * load.days_kept
    fixed = prices.requests_dollars(puts + looks, looking_gets, 0.0)
    fixed += prices.day_dollars(stored_bytes)
    of_hits = prices.requests_dollars(0.0, hit_gets, read_bytes)
    saved_h = hit_tokens / prefill_tps / 3600
    gain = saved_h * load.gpu_dollars_h - of_hits
    even_share = load.hit_share * fixed / gain if gain > 0 else None
    return StorePlan(
        pays=found.contests[0],
        prefill_tps=prefill_tps,
        recompute_ms=found.recompute_ms,
        puts_a_day=puts,
        gets_a_day=hit_gets + looking_gets,
        lists_a_day=looks,
        read_bytes_a_day=read_bytes,
        sent_bytes_a_day=sent_bytes,
        stored_bytes=stored_bytes,
        dollars_a_day=fixed + of_hits,
        saved_gpu_hours_a_day=saved_h,
        saved_dollars_a_day=saved_h * load.gpu_dollars_h,
        even_share=even_share if even_share is not None and even_share <= 1 else None,
    )
