"""For scripts and engines that join a pool; docs/client.md has the guide."""

from forebay.pool.client.chain import Chain
from forebay.pool.client.client import Client
from forebay.pool.client.outcomes import AdminOutcome, Known, Loaded, Receipt

__all__ = ["AdminOutcome", "Chain", "Client", "Known", "Loaded", "Receipt"]
