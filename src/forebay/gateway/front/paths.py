"""Which paths the gateway answers itself, which it passes on to engines, and which it never does.

Passed on is a list of shapes, not what is left over: engines have endpoints that pause them, load
weights or run code, and no spelling of those is passed on.
"""

import re
from enum import Enum, auto
from typing import Final

from forebay.gateway import page

_ENGINE: Final = re.compile(r"/v1(/[a-z0-9][a-z0-9_-]{0,63}){1,4}|/tokenize|/detokenize")
# Of vLLM, below /v1: adapters are loaded from any path, and answers belong to one engine.
_NEVER: Final = (
    "lora", "adapter", "abort", "sleep", "wake", "weight", "reset", "rpc", "profile",
    "cancel",
)  # fmt: skip
_OWN: Final = ("/health", "/status", "/metrics", "/v1/models", page.PLACE.rstrip("/"))
# Requests for text, which the pool has hints for.
HINTED: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
KNOWN: Final = frozenset({*_OWN, *HINTED, "/v1/embeddings", "/tokenize"})  # logs may name them


class PathKind(Enum):
    """Who answers a path."""

    OWN = auto()
    ENGINE = auto()
    NOBODY = auto()  # 404
    OTHER_METHOD = auto()  # 405


def kind_of(method: str, path: str) -> PathKind:
    """Who answers a request."""
    if path in _OWN or path.startswith(("/v1/models/", page.PLACE)):
        return PathKind.OWN if method in {"GET", "HEAD"} else PathKind.OTHER_METHOD
    if not _ENGINE.fullmatch(path) or any(word in path for word in _NEVER):
        return PathKind.NOBODY
    return PathKind.ENGINE if method == "POST" else PathKind.OTHER_METHOD
