"""The front's entry: who asks and what for, and the answers that the gateway gives itself.

Promised: every request is answered, or its connection ends; nothing of a request's content is
logged; the engines' own endpoints for operators cannot be reached through the gateway.
"""

import logging
from typing import Final

import msgspec

from forebay.documents import bodies
from forebay.gateway.config import GatewayConfig, KeySetting
from forebay.gateway.documents import DocumentStep
from forebay.gateway.front import answers, operators, reading
from forebay.gateway.front.forwarding import Forwarding, Refusal
from forebay.gateway.front.operators import OperatorAnswers, answer_json
from forebay.gateway.front.paths import KNOWN, PathKind, kind_of
from forebay.gateway.front.reading import ReadBody
from forebay.gateway.http.messages import BodyFault, IncomingRequest
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.placement.keys import KeyState
from forebay.gateway.seen import GatewayMetrics
from forebay.observe.access import Access

_log: Final = logging.getLogger(__name__)
_BODY_FAULTS: Final = {
    BodyFault.TOO_LARGE: Refusal(413, "the body is larger than this gateway takes"),
    BodyFault.TOO_SLOW: Refusal(408, "the body did not come in time"),
    BodyFault.TOO_MANY: Refusal(503, "too many large requests are under way", 2),
    BodyFault.BROKEN: Refusal(400, "the body is not what its headers say"),
}


class Front:
    """Checks each request, and answers it or has it forwarded."""

    def __init__(
        self,
        config: GatewayConfig,
        dispatcher: Dispatcher,
        forwarding: Forwarding,
        metrics: GatewayMetrics,
    ) -> None:
        self._config, self._dispatcher = config, dispatcher
        self._forwarding, self._metrics = forwarding, metrics
        self._access = Access(*config.listen, None)
        self._for_operators = OperatorAnswers(dispatcher, metrics)
        self._documents = DocumentStep(config.keys)

    async def handle(self, incoming: IncomingRequest) -> None:
        """Handle one request from start to end."""
        refusal = await self._answered(incoming)
        if refusal is None:
            return
        self._metrics.refused.add(labels=(str(refusal.status),))
        _log.info("%s was refused: %d", _shown(incoming.path), refusal.status)
        headers = {"Content-Type": answers.JSON}
        if refusal.retry_after_s:
            headers["Retry-After"] = str(refusal.retry_after_s)
        if refusal.status == 401:
            headers["WWW-Authenticate"] = operators.challenge(incoming.path)
        body = answers.error_body(incoming.path, refusal.status, refusal.why, refusal.code)
        await incoming.answer(refusal.status, headers, body)

    async def _answered(self, incoming: IncomingRequest) -> Refusal | None:
        if not self._config.has_keys and not self._access.is_host_ours(incoming.header("Host")):
            return Refusal(421, "this host has another name")
        kind = kind_of(incoming.method, incoming.path)
        if incoming.path == "/health":
            await incoming.answer(200, {}, b"")
            return None
        key = self._dispatcher.keys.find(operators.token_of(incoming))
        if key is None:
            return Refusal(401, "a valid key is needed", 0, "invalid_api_key")
        if kind is PathKind.NOBODY:
            return Refusal(404, "this gateway does not serve that path")
        if kind is PathKind.OTHER_METHOD:
            return Refusal(405, "this path does not take that method")
        if kind is PathKind.OWN:
            return await self._own(incoming, key)
        return await self._ask(incoming, key)

    async def _ask(self, incoming: IncomingRequest, key: KeyState) -> Refusal | None:
        is_one_of_many = len(self._dispatcher.keys.states) > 1
        body = await incoming.read_body(key.setting.name if is_one_of_many else "")
        if isinstance(body, BodyFault):
            return _BODY_FAULTS[body]
        if key.setting.cache_salt:
            salted = reading.with_salt(body, key.setting.cache_salt)
            if isinstance(salted, str):
                return Refusal(400, salted)
            body = salted
        members = bodies.marked(body)
        if members is None:
            read = reading.read_body(body, incoming.header("Content-Type"))
        elif isinstance(members, str):
            read = members
        else:
            body, read = self._with_documents(members, incoming.path, key.setting)
        if isinstance(read, str):
            return Refusal(400, read)
        if read.model not in self._dispatcher.models:
            return Refusal(404, "no engine serves a model of that name", 0, "model_not_found")
        return await self._forwarding.forward(incoming, body, read, key.setting.name)

    def _with_documents(
        self, members: dict[str, msgspec.Raw], path: str, key: KeySetting
    ) -> tuple[bytes, ReadBody | str]:
        """The body with its documents in order, and what is read of it; or why there is none."""
        made = self._documents.reorder(members, path, key)
        if isinstance(made, str):
            return b"", made
        self._metrics.documents.add(labels=("changed" if made.ranks else "kept",))
        return made.body, reading.read_reordered(made)

    async def _own(self, incoming: IncomingRequest, key: KeyState) -> Refusal | None:
        if incoming.path.startswith("/v1/models"):
            return await self._models(incoming)
        if self._config.has_keys and not key.setting.operator:
            return Refusal(403, "this is for keys with operator = true")
        if await self._for_operators.answer(incoming):
            return None
        return Refusal(404, "this gateway does not serve that path")

    async def _models(self, incoming: IncomingRequest) -> Refusal | None:
        """Answer with the models of all engines that are used, as the engines list them."""
        found: dict[str, dict[str, object]] = {}
        for model in self._dispatcher.models.values():
            for engine in model.engines:
                if engine.is_used and model.name not in found:
                    plain: dict[str, object] = {"id": model.name, "object": "model"}
                    found[model.name] = engine.models.get(model.name, plain)
        wanted = incoming.path.removeprefix("/v1/models").strip("/")
        if not wanted:
            await answer_json(incoming, {"object": "list", "data": list(found.values())})
        elif wanted in found:
            await answer_json(incoming, found[wanted])
        else:
            return Refusal(404, "no engine serves a model of that name", 0, "model_not_found")
        return None


def _shown(path: str) -> str:
    """A path as the log may show it: itself if it is a known one, else nothing of it."""
    return path if path in KNOWN else "a path"
