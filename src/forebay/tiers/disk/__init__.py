"""The NVMe tier: append-only regions in one or more directories, evicted whole in FIFO order."""

from forebay.tiers.disk.options import Directory, Options
from forebay.tiers.disk.tier import DiskTier

__all__ = ["Directory", "DiskTier", "Options"]
