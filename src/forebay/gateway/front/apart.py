"""Prefill and decode apart: one engine computes a long prompt, another one answers it.

The first is asked for one token, so that the prompt's KV goes to the pool; the second loads it from
there, and waits in its pool for what is still being stored: `computed_tokens` in its hints says so.
Whatever goes wrong with the first, the second gets the request as it came and computes the prompt.
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
_LEAST_S: Final = 60.0  # that a prompt may take; more where more was expected
_TIMES: Final = 10.0  # of what was expected
_BUSY: Final = (502, 503)


class Prefilled(NamedTuple):
    """Who computed a prompt."""

    engine: str  # empty: nobody
    tokens: int


_NOBODY: Final = Prefilled("", 0)


class ApartPrefill:
    """Has prompts computed."""

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
        """Have the prompt of a request computed that was placed, if that pays."""
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
        """How many tokens of prompt an engine has computed; 0: it has failed."""
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
            # One that is stopped takes requests and fails too seldom for the breaker to see it.
            failure = Unanswered("it did not compute a prompt in time", is_gone=True)
        if isinstance(failure, Unanswered):
            self._dispatcher.failed(engine, failure.why, is_gone=failure.is_gone)
            return 0
        engine.succeeded()
        return failure

    async def _read(self, answer: EngineAnswer) -> int | Unanswered:
        """The prompt's tokens as an answer says them; 0: it says none, or is a refusal."""
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
