"""Hints of a caller about its dialog: `kv_transfer_params.forebay` of a request, all optional.

docs/protocol.md has the fields. A hint is a wish: it changes what is kept of the caller's own
dialog, never what an answer is. A field of the wrong type counts as absent, a value beyond its
bounds as the bound; nothing here can fail.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forebay.identity.endings import (
    SESSION_BYTES,
    EndingClass,
    bounded_priority,
    bounded_seconds,
)
from forebay.identity.keys import ChainRoot

FIELD: Final = "forebay"
SESSION_LETTERS_MAX: Final = 256
_TOKENS_MAX: Final = 1 << 31
_ENDED: Final = {
    "tool_call": EndingClass.TOOL_CALL,
    "stop": EndingClass.STOP,
    "length": EndingClass.LENGTH,
}


@dataclass(frozen=True, slots=True)
class Hints:
    """The hints of one request, within bounds."""

    session: str = ""  # what the caller calls the dialog
    ended: EndingClass = EndingClass.NOT_KNOWN  # the dialog's answer before this request
    returns_in_s: float = 0.0  # time after the answer; 0: not said
    keep_s: float = 0.0  # after the answer
    store: bool = True  # False: nothing of this request is stored
    priority: int = 0
    computed_tokens: int = 0  # of the prompt, just computed by another engine

    def session_hash(self, root: ChainRoot) -> bytes:
        """The hash by which the pool knows the session; it depends on the salt too."""
        if not self.session:
            return b""
        key = hashlib.blake2b(root.namespace + root.salt.encode(errors="replace")).digest()
        name = self.session.encode(errors="replace")
        return hashlib.blake2b(name, digest_size=SESSION_BYTES, key=key).digest()


NO_HINTS: Final = Hints()


def hints_of(params: object) -> Hints:
    """The hints in a request's `kv_transfer_params`."""
    said = params.get(FIELD) if isinstance(params, Mapping) else None
    if not isinstance(said, Mapping):
        return NO_HINTS
    session, ended = said.get("session"), said.get("ended")
    priority = said.get("priority")
    return Hints(
        session[:SESSION_LETTERS_MAX] if isinstance(session, str) else "",
        _ENDED.get(ended if isinstance(ended, str) else "", EndingClass.NOT_KNOWN),
        _seconds(said.get("returns_in_s")),
        _seconds(said.get("keep_s")),
        said.get("store") is not False,
        bounded_priority(priority) if type(priority) is int else 0,
        _tokens(said.get("computed_tokens")),
    )


def _tokens(value: object) -> int:
    return min(max(0, value), _TOKENS_MAX) if type(value) is int else 0


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(bounded_seconds(value))
