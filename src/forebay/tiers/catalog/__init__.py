"""Where the records of a tier lie: what tiers with an index of their own have in common."""

from forebay.tiers.catalog.catalog import Catalog
from forebay.tiers.catalog.extent import Extent
from forebay.tiers.catalog.index import NO_PARENT, RecordPlace

__all__ = ["NO_PARENT", "Catalog", "Extent", "RecordPlace"]
