"""The NVMe tier: append-only regions in directories; the least recently asked for is evicted."""

from forebay.tiers.disk.options import Directory, Options
from forebay.tiers.disk.tier import DiskTier

__all__ = ["Directory", "DiskTier", "Options"]
