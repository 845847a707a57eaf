"""What operators see: the gateway's state, its metrics, and a page that shows both.

If keys are needed, a browser asks for a user and a password: the password is the token. Only paths
of the page accept it, since a browser also sends it with requests that another site makes it send.
"""

import asyncio
import base64
import binascii
import os
from typing import Any, Final

import msgspec

from forebay.gateway import page
from forebay.gateway.front import answers
from forebay.gateway.http.messages import IncomingRequest
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.seen import GatewayMetrics, status
from forebay.observe.exposition import CONTENT_TYPE

_TOKEN_LETTERS_MAX: Final = 4096
_COMMON: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class OperatorAnswers:
    """Answers requests of operators; the caller checks that they may see them."""

    def __init__(self, dispatcher: Dispatcher, metrics: GatewayMetrics) -> None:
        self._dispatcher, self._metrics = dispatcher, metrics
        self._begun = dispatcher.now()

    async def answer(self, incoming: IncomingRequest) -> bool:
        """Answer a request; False if there is nothing at its path."""
        path = incoming.path
        if path == "/status":
            await answer_json(incoming, status(self._dispatcher))
        elif path == "/metrics":
            snapshot = self._metrics.snapshot(self._dispatcher)
            text = await asyncio.to_thread(self._metrics.text, snapshot)
            await incoming.answer(200, {"Content-Type": CONTENT_TYPE}, text)
        elif path == page.STATS:
            await answer_json(incoming, self._stats())
        elif path in page.PATHS:
            file = await asyncio.to_thread(page.read, path)
            headers = {"Content-Type": file.content_type, **page.HEADERS, **_COMMON}
            await incoming.answer(200, headers, file.body)
        elif path == page.PLACE.rstrip("/"):
            await incoming.answer(308, {"Location": page.PLACE}, b"")
        else:
            return False
        return True

    def _stats(self) -> dict[str, Any]:
        """The state and all metrics, in the form that the page reads."""
        return {
            **status(self._dispatcher),
            "pid": os.getpid(),
            "uptime_s": round(self._dispatcher.now() - self._begun, 3),
            "metrics": self._metrics.snapshot(self._dispatcher),
        }


async def answer_json(incoming: IncomingRequest, value: Any) -> None:  # noqa: ANN401
    """Answer with an object as JSON."""
    headers = {"Content-Type": answers.JSON, **_COMMON}
    await incoming.answer(200, headers, msgspec.json.encode(value))


def is_page(path: str) -> bool:
    """Whether a path belongs to the page for operators."""
    return path.startswith(page.PLACE.rstrip("/"))


def challenge(path: str) -> str:
    """The WWW-Authenticate header that asks a client for its token."""
    return 'Basic realm="forebay gateway", charset="UTF-8"' if is_page(path) else "Bearer"


def token_of(incoming: IncomingRequest) -> str:
    """The token of a request: bearer, Anthropic's X-Api-Key, or a browser's password."""
    scheme, _, value = incoming.header("Authorization").strip().partition(" ")
    token = value.strip() if scheme.lower() == "bearer" else ""
    if scheme.lower() == "basic" and is_page(incoming.path):
        token = _password(value.strip())
    return (token or incoming.header("X-Api-Key").strip())[:_TOKEN_LETTERS_MAX]


def _password(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2].decode(errors="replace")
    except (binascii.Error, ValueError):
        return ""
