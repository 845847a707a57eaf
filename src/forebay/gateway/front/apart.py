"""Prefill and decode apart: one engine computes a long prompt, another one answers it.

The first is asked for one token, so that the prompt's KV is stored in the pool. The second loads it
from there; `computed_tokens` in its hints makes the pool wait for chunks that are still being
stored. If anything goes wrong with the first, the second gets the unchanged request and computes
the prompt itself.
"""

import asyncio
from typing import Final, NamedTuple

from forebay.gateway.front import reading
from forebay.gateway.front.headers import NOT_SENT, without
from forebay.gateway.front.observing import WHOLE_BYTES_MAX, AnswerObserver
from forebay.gateway.http.client import EngineAnswer, EngineClient
from forebay.gateway.http.messages import BrokenOff, IncomingRequest, Unanswered
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.placement.request import RoutedRequest
from forebay.gateway.seen import GatewayMetrics

PREFILL_HEADER: Final = "X-Forebay-Prefill"
_LEAST_S: Final = 60.0  # how long a prompt may take at least
_TIMES: Final = 10.0  # how many times the expected time it may take, if that is longer
_BUSY: Final = (502, 503)


class Prefilled(NamedTuple):
    """Which engine computed a prompt, and its size."""

    engine: str  # empty: nobody
    tokens: int


_NOBODY: Final = Prefilled("", 0)


class ApartPrefill:
    """Has long prompts computed by engines of role prefill."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        client: EngineClient,
        metrics: GatewayMetrics,
        least_s: float = _LEAST_S,
    ) -> None:
        self._dispatcher, self._client, self._metrics = dispatcher, client, metrics
        self._least_s = least_s

    async def prefill(
        self, incoming: IncomingRequest, body: bytes, request: RoutedRequest
    ) -> Prefilled:
        """Have another engine compute the prompt of a request that was placed, if that pays."""
        first = self._dispatcher.begin_prefill(request)
        if first is None:
            return _NOBODY
        tokens = 0
        try:
            sent = reading.prefill_body(body, incoming.path)
            if sent is not None:
                tokens = await self._ask(incoming, sent, first)
        finally:
            self._dispatcher.end_prefill(first, is_computed=bool(tokens))
        outcome = "computed" if tokens else "failed"
        self._metrics.prefilled.add(labels=(first.engine, outcome))
        return Prefilled(first.engine, tokens) if tokens else _NOBODY

    async def _ask(self, incoming: IncomingRequest, body: bytes, first: RoutedRequest) -> int:
        """How many prompt tokens the engine has computed; 0 if it failed."""
        engine = self._dispatcher.engines[first.engine]
        headers = without(incoming.headers(), NOT_SENT)
        url = f"{engine.setting.url}{incoming.path}"
        limit_s = max(self._least_s, _TIMES * engine.prefill_tokens / engine.prefill_rate)
        try:
            async with (
                asyncio.timeout(limit_s),
                self._client.send("POST", url, headers, body) as answer,
            ):
                failure = answer if isinstance(answer, Unanswered) else await self._read(answer)
        except TimeoutError:
            # A stopped process still accepts requests, and would fail too seldom to count as down.
            failure = Unanswered("it did not compute a prompt in time", is_gone=True)
        if isinstance(failure, Unanswered):
            self._dispatcher.failed(engine, failure.why, is_gone=failure.is_gone)
            return 0
        engine.succeeded()
        return failure

    async def _read(self, answer: EngineAnswer) -> int | Unanswered:
        """The prompt's tokens as the answer reports them; 0 if it does not, or is a refusal."""
        observer = AnswerObserver(is_stream=False)
        size_bytes = 0
        while piece := await answer.read():
            if isinstance(piece, BrokenOff):
                return Unanswered(piece.why)
            size_bytes += len(piece)
            if size_bytes > WHOLE_BYTES_MAX:
                return Unanswered("its answer is too long")
            observer.passing(piece)
        if answer.status in _BUSY:
            return Unanswered(f"it answered {answer.status}")
        return (observer.served().prompt or 0) if answer.status == 200 else 0
