"""What every tier must pass: inherit `TierConformance`, open your tier in a hook, run pytest.

    class TestMyTier(TierConformance):
        def open_tier(self, place: Path, listener: TierListener) -> Tier: ...
        def damage(self, place: Path) -> None: ...

The tests use only the contract (`forebay.tiers.contract`) and know no medium.
"""

from forebay.testing.conformance.hooks import keys, load, prefix_of, store
from forebay.testing.conformance.records import RecordConformance
from forebay.testing.conformance.stack import StackConformance

__all__ = ["TierConformance", "keys", "load", "prefix_of", "store"]


class TierConformance(RecordConformance, StackConformance):
    """The whole contract as tests."""
