"""A third tier is one file: it keeps the contract, and the pool works with it beneath the disk."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from tests.encryption_harness import KEYS
from tests.tiers.slow_memory import SlowMemoryTier

from forebay.record.keyring import NameCipher
from forebay.sys.shared import SharedMemory
from forebay.sys.world import World
from forebay.testing.conformance import TierConformance
from forebay.tiers.contract import Tier, TierListener
from forebay.tiers.hidden_names import HiddenNamesTier

ROOT = Path(__file__).parent.parent.parent


class TestSlowMemoryTier(TierConformance):
    is_persistent: ClassVar[bool] = False
    may_ask: ClassVar[bool] = True

    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        self.tier_under_test = SlowMemoryTier(listener, world=World(), cap_bytes=2 << 20)
        return self.tier_under_test

    def damage(self, place: Path) -> None:
        for _, payload in self.tier_under_test.records.values():
            payload[0] ^= 1


class TestSlowMemoryTierWithHiddenNames(TestSlowMemoryTier):
    """The same tests: whoever asks, and listens, knows records by their own names."""

    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        return HiddenNamesTier(partial(super().open_tier, place), NameCipher(KEYS.names), listener)

    def test_the_tier_hears_where_chunks_lie(self, tier: Tier) -> None:
        memory = SharedMemory.of(1 << 12)
        tier.attach(memory)
        memory.close()


def test_hidden_names_forget_no_method_or_attribute_of_a_tier() -> None:
    public = {name for name in vars(Tier) if not name.startswith("_")}
    methods = {name for name in public if callable(getattr(Tier, name))}
    assert {"prefix", "usage_of", "forget"} <= methods
    assert methods <= vars(HiddenNamesTier).keys()
    slow = SlowMemoryTier(TierListener(), world=World(), cap_bytes=2 << 20)
    attributes = (public | Tier.__annotations__.keys()) - methods
    for name in attributes:
        setattr(slow, name, object())
    hidden = HiddenNamesTier(lambda _: slow, NameCipher(KEYS.names), TierListener())
    assert {"name", "comes_back"} <= attributes
    for name in attributes:
        assert getattr(hidden, name) is getattr(slow, name), name


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_pools_own_tests_pass_with_it_beneath_the_disk() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not long"]
    third = ["--lower-tier", "tests.tiers.slow_memory:SlowMemoryTier"]
    ended = subprocess.run(
        [*command, *third, "tests/pool/core"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-8000:]
