"""Whether an engine shares its KV, in which namespace, and if not, why.

The states are a closed set, since they are values of a metric's label.
"""

import logging
import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from forebay.errors import StartupError
from forebay.identity.namespace import fingerprint
from forebay.pool import service
from forebay.settings import Settings

DISABLED: Final = "Forebay is disabled for this engine: %s."
NAMESPACE_DIGITS: Final = 16  # digits of a namespace that `forebay stats` shows
_log: Final = logging.getLogger("forebay")


class SharingState(StrEnum):
    """What an engine is doing about sharing; the label of the gauge `forebay:sharing`."""

    SHARING = "sharing"  # it has joined a pool and its namespace is known
    HASHING_WEIGHTS = "hashing_weights"  # nothing is shared until the hash is known
    NO_POOL = "no_pool"  # there is none, or it went away; joined again when it is back
    DECLINED = "declined"  # the configuration is not supported; final
    WEIGHTS_UNKNOWN = "weights_unknown"  # no files to hash, and no `weights_id`; final


class Obstacle(NamedTuple):
    """Why an engine can share nothing for as long as it runs."""

    state: SharingState  # never SHARING
    sentence: str  # what is in the way and what to do about it, without a full stop
    reason: str  # for a metric: the kind that is declined, or what is missing


def must_share(settings: Settings) -> bool:
    """Whether an engine that finds no pool at its start must end."""
    return settings.strict or settings.no_pool == "fail"


def find_pool(settings: Settings) -> str:
    """The path of the pool, which is joined, or started, if possible.

    If none answers, the engine serves without one and keeps looking for it; StartupError if the
    settings demand a pool.
    """
    path = service.socket_path(settings)
    try:
        return service.join_or_start(settings)
    except StartupError as error:
        if must_share(settings):
            raise
        _log.warning("%s Serving without a pool until one answers at %s.", error, path)
        return path


class EngineNamespace:
    """The namespace of one engine; not known before its weights are."""

    def __init__(self, fields: Mapping[str, str | int]) -> None:
        """`fields` is everything that shapes KV bytes, except the weights and the tokens."""
        self._fields = fields
        self._weights: dict[str, str] = {}
        self._private = ""
        self.name: bytes | None = None

    def know_weights(self, digest: str, *drafter: str) -> None:
        """Set the hash of the weights' files: from now on there is a name."""
        self._weights = {"weights": digest, **({"drafter_weights": drafter[0]} if drafter else {})}
        self._rename()

    def name_weights(self, weights_id: str) -> None:
        """Identify the weights by an operator's name, in a field that never equals a hash."""
        self._weights = {"weights_id": weights_id}
        self._rename()

    def make_private(self) -> None:
        """The weights may have changed in memory: use a new namespace that nobody shares."""
        self._private = secrets.token_hex(16)
        self._rename()

    def _rename(self) -> None:
        if self._weights:
            self.name = fingerprint({**self._fields, **self._weights, "private": self._private})
