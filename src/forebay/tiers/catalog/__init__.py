"""Where a tier's records lie: for tiers that keep an index of their own."""

from forebay.tiers.catalog.catalog import Catalog
from forebay.tiers.catalog.extent import Extent
from forebay.tiers.catalog.index import NO_PARENT, RecordPlace

__all__ = ["NO_PARENT", "Catalog", "Extent", "RecordPlace"]
