"""The gateway's step for requests that mark their documents: the most popular come first.

Promised: requests without the mark do not come here; what the requests of one tenant, or of one key
without a tenant, ask for changes nothing in the order of another's, and likewise of one cache_salt
against another; memory has a limit, whatever is asked. Popularity is lost when the gateway ends.
"""

from typing import Final

import msgspec

from forebay.documents import bodies
from forebay.documents.bodies import ReorderedBody
from forebay.documents.order import DocumentOrder
from forebay.documents.popularity import DOCUMENTS_MAX
from forebay.gateway.config import KeySetting

_ALL_MAX: Final = 1 << 20  # documents that are remembered, of all keys; 160 bytes each


class DocumentStep:
    """Orders documents of requests, by whose they are."""

    def __init__(self, keys: tuple[KeySetting, ...]) -> None:
        owners = {_owner(each) for each in keys}
        limit = min(DOCUMENTS_MAX, _ALL_MAX // len(owners))
        self._orders = {each: DocumentOrder(limit) for each in owners}

    def reorder(
        self, members: dict[str, msgspec.Raw], path: str, key: KeySetting
    ) -> ReorderedBody | str:
        """The body of these members for an engine, or in one sentence why it has none."""
        member = bodies.MEMBERS.get(path)
        if member is None:
            return f"{bodies.MEMBER} is for {' and '.join(bodies.MEMBERS)} alone"
        return bodies.reordered(members, member, self._orders[_owner(key)])


def _owner(key: KeySetting) -> tuple[str, str]:
    """A tenant, or a key that has none."""
    return (key.tenant, "" if key.tenant else key.name)
