"""Carries one request through the gateway: place it, send it to an engine, pass on its answer.

Promised: bytes pass unchanged; nothing is sent twice after the first byte of an answer, and before
it only if no connection could be made, or the engine answered 502 or 503; a stream that breaks off
ends with an error event; placement is told of the end, whatever it was. Assumed: a client that
disconnects cancels the task.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from forebay.gateway.front import answers, reading
from forebay.gateway.front.apart import PREFILL_HEADER, ApartPrefill
from forebay.gateway.front.headers import HOP, NOT_SENT, without
from forebay.gateway.front.observing import AnswerObserver
from forebay.gateway.front.paths import HINTED
from forebay.gateway.front.reading import ReadBody
from forebay.gateway.http.client import EngineAnswer, EngineClient
from forebay.gateway.http.messages import BrokenOff, Headers, IncomingRequest, Unanswered
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.placement.engine_state import EngineState
from forebay.gateway.placement.request import (
    NotPlaced,
    Placement,
    RoutedRequest,
    ServedTokens,
)
from forebay.gateway.seen import GatewayMetrics

ENGINE_HEADER: Final = "X-Forebay-Engine"
REASON_HEADER: Final = "X-Forebay-Reason"
DOCUMENTS_HEADER: Final = "X-Forebay-Documents"  # ranks of documents whose order was changed
_RESPONSES: Final = "/v1/responses"
_HOLDERS_MAX: Final = 100_000  # answers whose engine is remembered
_SESSIONS_MAX: Final = 100_000  # sessions of which the last answer's ending is remembered
_BUSY: Final = (502, 503)  # after these, a request may be sent to another engine
_NONE_SERVED: Final = ServedTokens()
_NO_TOKENS: Final = ServedTokens(prompt=0)  # for a refused request: its key is charged nothing


class Refusal(NamedTuple):
    """An error that the gateway answers itself."""

    status: int
    why: str
    retry_after_s: int = 0
    code: str = ""


@dataclass(slots=True)
class _Exchange:
    """One request on its way to an engine, and its answer."""

    incoming: IncomingRequest
    body: bytes
    read: ReadBody
    request: RoutedRequest
    served: ServedTokens = _NONE_SERVED
    prefilled_by: str = ""  # the engine that computed the prompt for the one that answers
    computed_tokens: int = 0  # how many tokens that engine computed
    timer: asyncio.TimerHandle | None = None  # for the assumed end of the prefill; see below

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class Forwarding:
    """Passes requests on to engines, and their answers back."""

    def __init__(
        self, dispatcher: Dispatcher, client: EngineClient, metrics: GatewayMetrics
    ) -> None:
        self._dispatcher, self._client, self._metrics = dispatcher, client, metrics
        self._apart = ApartPrefill(dispatcher, client, metrics)
        self._ended: OrderedDict[tuple[str, str], str] = OrderedDict()  # key, session → ending
        self._holders: OrderedDict[str, str] = OrderedDict()  # name of an answer → engine

    async def forward(
        self, incoming: IncomingRequest, body: bytes, read: ReadBody, key: str
    ) -> Refusal | None:
        """Have an engine answer a request; a Refusal if none did."""
        headers = {name.lower(): value for name, value in incoming.headers()}
        request = RoutedRequest(
            key=key,
            model=read.model,
            chain=read.chain,
            prompt_bytes=read.prompt_bytes,
            answer_tokens_max=read.answer_tokens_max,
            session=reading.session_of(headers),
            holder=self._holders.get(read.continues, ""),
        )
        placed = await self._dispatcher.place(request)
        if isinstance(placed, NotPlaced):
            return Refusal(placed.status, placed.why, placed.retry_after_s)
        self._metrics.queue_s.observe(request.begun - request.arrived)
        exchange = _Exchange(incoming, body, read, request)
        try:
            if read.takes_hints and incoming.path in HINTED:
                exchange.prefilled_by, exchange.computed_tokens = await self._apart.prefill(
                    incoming, body, request
                )
            return await self._try(exchange, placed)
        except (asyncio.CancelledError, ConnectionError):
            self._metrics.gone.add()
            raise
        finally:
            exchange.stop_timer()
            self._dispatcher.end(request, exchange.served)

    async def _try(self, exchange: _Exchange, placed: Placement) -> Refusal | None:
        is_again = False
        while True:
            engine = self._dispatcher.engines[placed.engine]
            self._expect_prefill(exchange, engine)
            async with self._client.send(
                "POST", self._url(exchange, engine), *self._sent(exchange, engine)
            ) as answer:
                failure = _failure_of(answer)
                if failure is None:
                    assert isinstance(answer, EngineAnswer)
                    engine.began_answer()
                    await self._pass(exchange, placed, answer)
                    return None
                self._dispatcher.failed(engine, failure.why, is_gone=failure.is_gone)
                may_retry = failure.is_gone or isinstance(answer, EngineAnswer)
                again = None
                if may_retry and not is_again:
                    again = self._dispatcher.place_again(exchange.request)
                if again is None:
                    return await self._give_up(exchange, placed, answer, failure)
            self._metrics.retried.add(labels=(placed.engine,))
            placed, is_again = again, True

    def _expect_prefill(self, exchange: _Exchange, engine: EngineState) -> None:
        """Without a stream no first token is seen: count the prompt as computed when expected."""
        exchange.stop_timer()
        if not exchange.read.is_streamed:
            delay_s = engine.prefill_tokens / engine.prefill_rate
            exchange.timer = asyncio.get_running_loop().call_later(
                delay_s, self._dispatcher.prefilled, exchange.request
            )

    async def _give_up(
        self,
        exchange: _Exchange,
        placed: Placement,
        answer: EngineAnswer | Unanswered,
        failure: Unanswered,
    ) -> Refusal | None:
        if isinstance(answer, EngineAnswer):
            await self._pass(exchange, placed, answer)
            return None
        exchange.served = _NO_TOKENS
        return Refusal(502, f"engine {placed.engine} failed: {failure.why}", 0, "engine_failed")

    def _url(self, exchange: _Exchange, engine: EngineState) -> str:
        incoming = exchange.incoming
        query = f"?{incoming.query}" if incoming.query else ""
        return f"{engine.setting.url}{incoming.path}{query}"

    def _sent(self, exchange: _Exchange, engine: EngineState) -> tuple[Headers, bytes]:
        headers = without(exchange.incoming.headers(), NOT_SENT)
        body = exchange.body
        is_hinted = engine.setting.pool and exchange.incoming.path in HINTED
        if is_hinted and exchange.read.takes_hints:
            body = reading.with_hints(body, self._hints(exchange))
        return headers, body

    def _hints(self, exchange: _Exchange) -> dict[str, str | int]:
        request = exchange.request
        hints: dict[str, str | int] = {}
        if request.session:
            hints["session"] = request.session
            if ended := self._ended.get((request.key, request.session)):
                hints["ended"] = ended
        if exchange.read.priority:
            hints["priority"] = -exchange.read.priority  # in vLLM, lower is more urgent
        if exchange.computed_tokens:
            hints["computed_tokens"] = exchange.computed_tokens
        return hints

    async def _pass(self, exchange: _Exchange, placed: Placement, answer: EngineAnswer) -> None:
        """Pass an answer on, from its headers to its end."""
        incoming = exchange.incoming
        is_stream = answer.header("Content-Type").startswith("text/event-stream")
        # A stream that breaks off gets one more event, so the engine's length may not hold.
        headers = without(answer.headers, HOP | {"content-length"} if is_stream else HOP)
        headers += [(ENGINE_HEADER, placed.engine), (REASON_HEADER, placed.reason)]
        if exchange.prefilled_by:
            headers.append((PREFILL_HEADER, exchange.prefilled_by))
        if ranks := exchange.read.ranks:
            headers.append((DOCUMENTS_HEADER, ",".join(map(str, ranks))))
        is_response = incoming.path == _RESPONSES
        observer = AnswerObserver(is_stream=is_stream, is_response=is_response)
        self._metrics.requests.add(labels=(placed.engine, placed.reason))
        await incoming.begin(answer.status, headers)
        try:
            if is_stream:
                why = await self._events(exchange, placed, answer, observer)
            else:
                why = await self._pieces(exchange, answer, observer)
        finally:
            exchange.served = observer.served() if answer.status < 400 else _NO_TOKENS
        engine = self._dispatcher.engines[placed.engine]
        if why is not None:
            self._dispatcher.failed(engine, why)
            self._metrics.broken.add(labels=(placed.engine,))
            if not is_stream:
                incoming.break_off()
                return
            said = f"engine {placed.engine} failed: {why}"
            await incoming.write(answers.error_event(incoming.path, said))
        else:
            if answer.status not in _BUSY:
                engine.succeeded()
            if rest := observer.rest():
                await incoming.write(rest)
        await incoming.end()
        self._note(exchange, observer)

    async def _events(
        self,
        exchange: _Exchange,
        placed: Placement,
        answer: EngineAnswer,
        observer: AnswerObserver,
    ) -> str | None:
        """Pass on a stream: its first event tells that the prompt is computed. See `_pieces`."""
        data = await answer.read()
        if isinstance(data, BrokenOff):
            return data.why
        request = exchange.request
        self._dispatcher.first_token(request)
        self._metrics.ttft_s.observe(self._dispatcher.now() - request.begun)
        self._metrics.expected_s.observe(placed.expected_s)
        await self._write(exchange, observer, data)
        return await self._pieces(exchange, answer, observer) if data else None

    async def _pieces(
        self, exchange: _Exchange, answer: EngineAnswer, observer: AnswerObserver
    ) -> str | None:
        """Pass on the rest of an answer; why it broke off, or None if it is complete."""
        while True:
            data = await answer.read()
            if isinstance(data, BrokenOff):
                return data.why
            if not data:
                return None
            await self._write(exchange, observer, data)

    async def _write(self, exchange: _Exchange, observer: AnswerObserver, data: bytes) -> None:
        """Pass on a piece as far as its events are complete; first note which engine holds it."""
        if engine := self._dispatcher.engines.get(exchange.request.engine):  # else: given up
            engine.pieces += 1
        was_named = bool(observer.name)
        passed = observer.passing(data)
        if observer.name and not was_named:
            self._holders[observer.name] = exchange.request.engine
            self._holders.move_to_end(observer.name)
            if len(self._holders) > _HOLDERS_MAX:
                self._holders.popitem(last=False)
        if passed:
            await exchange.incoming.write(passed)

    def _note(self, exchange: _Exchange, observer: AnswerObserver) -> None:
        """Note an answer's tokens for the metrics, and its ending for the dialog's next request."""
        request, served = exchange.request, exchange.served
        self._metrics.tokens.add(round(request.uncached(served)), (request.key, "prompt"))
        self._metrics.tokens.add(served.answer, (request.key, "answer"))
        if request.session and (ended := observer.ended()):
            self._ended[request.key, request.session] = ended
            self._ended.move_to_end((request.key, request.session))
            if len(self._ended) > _SESSIONS_MAX:
                self._ended.popitem(last=False)


def _failure_of(answer: EngineAnswer | Unanswered) -> Unanswered | None:
    """Why an answer counts as the engine's failure; None if it does not, as with client errors."""
    if isinstance(answer, Unanswered):
        return answer
    if answer.status in _BUSY:
        return Unanswered(f"it answered {answer.status}")
    return None
