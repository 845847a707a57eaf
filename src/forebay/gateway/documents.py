"""The gateway's step for requests that mark their documents: the most popular come first.

Promised: requests without the mark do not come here; requests of one tenant, or of one key without
a tenant, do not affect the order for another one, nor do those of one cache_salt for another;
memory is limited. Popularity is lost when the gateway ends.
"""

from typing import Final

import msgspec

from forebay.documents import bodies
from forebay.documents.bodies import ReorderedBody
from forebay.documents.order import DocumentOrder
from forebay.documents.popularity import DOCUMENTS_MAX
from forebay.gateway.config import KeySetting

_ALL_MAX: Final = 1 << 20  # documents that are remembered over all keys; 160 bytes each


class DocumentStep:
    """Orders the documents of requests, separately for each tenant, or key without one."""

    def __init__(self, keys: tuple[KeySetting, ...]) -> None:
        owners = {_owner(each) for each in keys}
        limit = min(DOCUMENTS_MAX, _ALL_MAX // len(owners))
        self._orders = {each: DocumentOrder(limit) for each in owners}

    def reorder(
        self, members: dict[str, msgspec.Raw], path: str, key: KeySetting
    ) -> ReorderedBody | str:
        """The body for an engine, with its documents in order, or why there is none."""
        member = bodies.MEMBERS.get(path)
        if member is None:
            return f"{bodies.MEMBER} is for {' and '.join(bodies.MEMBERS)} alone"
        return bodies.reordered(members, member, self._orders[_owner(key)])


def _owner(key: KeySetting) -> tuple[str, str]:
    """The key's tenant, or the key itself if it has none."""
    return (key.tenant, "" if key.tenant else key.name)
