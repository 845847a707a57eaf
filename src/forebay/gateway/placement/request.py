"""A request as placement sees it: sizes, hashes and limits, nothing of its text."""

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from forebay.gateway.placement.prefixes import Chain


class Placement(NamedTuple):
    """Where a request goes."""

    engine: str
    reason: str  # a word of choice.Reason
    expected_s: float  # to the first token


class NotPlaced(NamedTuple):
    """A request is refused."""

    status: int  # of HTTP
    why: str  # one sentence for the client
    retry_after_s: int = 0  # 0: it does not say


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """One request, from its arrival to its end; the event loop owns it."""

    key: str  # the name of whose it is
    model: str
    chain: Chain = ()
    prompt_bytes: int = 0
    answer_tokens_max: int = 0  # that the client asks for; 0: it does not say
    session: str = ""  # of the client's; empty: it has none
    # Set by the dispatcher.
    arrived: float = 0.0
    cost: float = 0.0  # uncached prompt and expected answer tokens, as the queue counts them
    is_long: bool = False
    bytes_per_token: float = 4.0
    waiting: "asyncio.Future[Placement | NotPlaced] | None" = None
    # Set when it is placed.
    engine: str = ""
    begun: float = 0.0
    uncached_tokens: float = 0.0  # that the engine likely has to compute
    loaded_tokens: float = 0.0  # that it likely loads from the pool
    output_tokens: float = 0.0  # that are expected
    was_alone: bool = False  # no other prompt was being computed when it began
    is_prefilled: bool = False
    tried: list[str] = field(default_factory=list)  # engines that failed it


class ServedTokens(NamedTuple):
    """What a request took in the end, as far as the answer says it."""

    prompt: int | None = None  # None: it does not say
    cached: int = 0
    answer: int = 0
