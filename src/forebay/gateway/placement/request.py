"""A request as placement sees it: sizes, hashes and limits, nothing of its text."""

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from forebay.gateway.placement.prefixes import Chain


class Placement(NamedTuple):
    """Where a request goes."""

    engine: str
    reason: str  # a value of choice.Reason
    expected_s: float  # time to the first token


class NotPlaced(NamedTuple):
    """Why a request is refused."""

    status: int  # of the HTTP answer
    why: str  # one sentence for the client
    retry_after_s: int = 0  # 0: not given


class Needs(NamedTuple):
    """What a request needs before it can start; with equal needs, requests wait for the same."""

    model: str
    is_long: bool
    engine: str  # the only one that can answer it; empty: any of the model


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """One request, from its arrival to its end; the event loop owns it."""

    key: str  # the name of its API key
    model: str
    chain: Chain = ()
    prompt_bytes: int = 0
    answer_tokens_max: int = 0  # that the client asks for; 0: no limit given
    session: str = ""  # the client's id of its dialog; empty: none
    holder: str = ""  # the engine that holds the answer that it continues; empty: none
    # Set by the dispatcher.
    arrived: float = 0.0
    cost: float = 0.0  # uncached prompt and expected answer tokens, as the queue counts them
    is_long: bool = False
    bytes_per_token: float = 4.0
    waiting: "asyncio.Future[Placement | NotPlaced] | None" = None
    charged: object = None  # the queue's lane that was charged for it; None: none was
    # Set when it is placed.
    engine: str = ""
    begun: float = 0.0
    uncached_tokens: float = 0.0  # that the engine likely has to compute
    loaded_tokens: float = 0.0  # that it likely loads from the pool
    output_tokens: float = 0.0  # expected length of the answer
    was_alone: bool = False  # no other prompt was being computed when it began
    is_prefilled: bool = False
    tried: list[str] = field(default_factory=list)  # engines where it failed

    @property
    def needs(self) -> Needs:
        """What it needs before it can start."""
        return Needs(self.model, self.is_long, self.holder)

    def uncached(self, served: "ServedTokens") -> float:
        """Prompt tokens that were computed: as the answer reports, else as expected."""
        if served.prompt is None:
            return self.uncached_tokens
        if served.cached is not None:
            return max(0, served.prompt - served.cached)
        share = self.uncached_tokens * self.bytes_per_token / max(1, self.prompt_bytes)
        return served.prompt * min(1.0, share)


class ServedTokens(NamedTuple):
    """The tokens that a request took, as far as the answer reports them."""

    prompt: int | None = None  # cached ones included; None: not reported
    cached: int | None = None  # those of the prompt that were not computed; None: not reported
    answer: int = 0
