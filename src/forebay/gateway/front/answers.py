"""What the gateway says itself, in the words of the API that was asked: errors and their events."""

from http import HTTPStatus
from typing import Final

import msgspec

_OPENAI_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES: Final = {**_OPENAI_TYPES, 413: "request_too_large", 503: "overloaded_error"}
JSON: Final = "application/json"


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to Anthropic's API."""
    return path.startswith("/v1/messages")


def error_body(path: str, status: int, why: str, code: str = "") -> bytes:
    """An error in the form that the client's library expects."""
    return msgspec.json.encode(_error(path, status, why, code))


def error_event(path: str, why: str) -> bytes:
    """The event that ends a stream that broke off."""
    said = error_body(path, HTTPStatus.BAD_GATEWAY, why, "engine_failed")
    if is_anthropic(path):
        return b"event: error\ndata: %b\n\n" % said
    return b"data: %b\n\n" % said


def _error(path: str, status: int, why: str, code: str) -> dict[str, object]:
    if is_anthropic(path):
        kind = _ANTHROPIC_TYPES.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": why}}
    kind = _OPENAI_TYPES.get(status, "server_error")
    return {"error": {"message": why, "type": kind, "param": None, "code": code or status}}
