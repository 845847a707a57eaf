"""Which paths the gateway answers itself, which it passes on to engines, and which it never does.

Only paths of listed shapes are passed on, not all others: engines have endpoints that pause them,
load weights or run code, and no spelling of those may get through.
"""

import re
from enum import Enum, auto
from typing import Final

from forebay.gateway import page

_ENGINE: Final = re.compile(r"/v1(/[a-z0-9][a-z0-9_-]{0,63}){1,4}|/tokenize|/detokenize")
# vLLM's paths below /v1 that load adapters from any path, or act on one engine's answers.
_NEVER: Final = (
    "lora", "adapter", "abort", "sleep", "wake", "weight", "reset", "rpc", "profile",
    "cancel",
)  # fmt: skip
_OWN: Final = ("/health", "/status", "/metrics", "/v1/models", page.PLACE.rstrip("/"))
# Requests for text, to which hints for the pool are added.
HINTED: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
KNOWN: Final = frozenset({*_OWN, *HINTED, "/v1/embeddings", "/tokenize"})  # may appear in logs


class PathKind(Enum):
    """Who answers requests for a path."""

    OWN = auto()
    ENGINE = auto()
    NOBODY = auto()  # 404
    OTHER_METHOD = auto()  # 405


def kind_of(method: str, path: str) -> PathKind:
    """Who answers a request with this method and path."""
    if path in _OWN or path.startswith(("/v1/models/", page.PLACE)):
        return PathKind.OWN if method in {"GET", "HEAD"} else PathKind.OTHER_METHOD
    if not _ENGINE.fullmatch(path) or any(word in path for word in _NEVER):
        return PathKind.NOBODY
    return PathKind.ENGINE if method == "POST" else PathKind.OTHER_METHOD
