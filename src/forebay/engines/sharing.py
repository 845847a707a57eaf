"""Whether an engine shares its KV, and if not, why: for its log, its metrics and `strict`.

The states are a closed set, since they are the values of a metric's label.
"""

from enum import StrEnum
from typing import NamedTuple


class SharingState(StrEnum):
    """What an engine is doing about sharing; the label of the gauge `forebay:sharing`."""

    SHARING = "sharing"  # it has joined a pool and knows who it is
    HASHING_WEIGHTS = "hashing_weights"  # nothing is shared until the hash is known
    NO_POOL = "no_pool"  # there is none, or it went away; joined when it is back
    DECLINED = "declined"  # the configuration is not supported; final
    WEIGHTS_UNKNOWN = "weights_unknown"  # no files to hash, and no `weights_id`; final


class Obstacle(NamedTuple):
    """Why an engine can share nothing for as long as it runs."""

    state: SharingState  # never SHARING
    sentence: str  # what is in the way and what to do about it, without a full stop
    reason: str  # the same for a metric: a kind that is declined, or what could not be had
