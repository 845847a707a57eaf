"""What the parts of a remote tier share; all but the inbox belongs to the tier's thread."""

import logging
from dataclasses import dataclass
from typing import Final

from forebay.sys.clock import Clock
from forebay.tiers.contract import TierListener
from forebay.tiers.remote.breaker import Breaker
from forebay.tiers.remote.index.others import OtherHosts
from forebay.tiers.remote.jobs import Inbox
from forebay.tiers.remote.lending import Lending
from forebay.tiers.remote.options import RemoteOptions
from forebay.tiers.remote.own import OwnPacks
from forebay.tiers.remote.process.link import Link

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class RemoteParts:
    """One store and what is known of it."""

    path: str  # the store, for people
    host: str
    cap_bytes: int
    options: RemoteOptions
    clock: Clock
    listener: TierListener
    link: Link
    lending: Lending
    breaker: Breaker
    own: OwnPacks
    others: OtherHosts
    inbox: Inbox
    read_bytes: int = 0
    written_bytes: int = 0
    forgotten: frozenset[bytes] = frozenset()  # tenants whose packs are deleted where found

    def failed(self) -> None:
        """A call of the store failed."""
        if self.breaker.failed(self.clock.monotonic()):
            _log.warning("%s failed too often and is left alone; it is probed later", self.path)

    def trip(self, why: str) -> None:
        """Leave the store alone until it has answered a probe."""
        if self.breaker.trip(self.clock.monotonic()):
            _log.warning("%s %s and is left alone; it is probed later", self.path, why)
