"""What a tier gives its conformance tests, and how they call a tier."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

import pytest

from forebay.testing.outcomes import FOREVER, Outcomes, RecordingListener
from forebay.testing.samples import Sample, chain
from forebay.tiers import blocking
from forebay.tiers.contract import Dropped, LoadOutcome, Stored, Tier, TierListener

CLOSE_S: Final = 20.0
HANG_S: Final = 300.0  # what takes longer counts as a hang


class ConformanceHooks:
    """Two methods to implement, and two attributes to set if their defaults are wrong."""

    is_persistent: ClassVar[bool] = True  # whether records survive close and open
    may_ask: ClassVar[bool] = False  # whether `prefix` may return "unknown" and ask the medium

    def open_tier(self, place: Path, listener: TierListener) -> Tier:
        """Open a tier of 1 to 16 MiB whose medium, if it has one, is in `place`."""
        raise NotImplementedError

    def damage(self, place: Path) -> None:
        """Change bytes of every stored payload, without the tier noticing."""
        raise NotImplementedError

    @pytest.fixture
    def listener(self) -> RecordingListener:
        """The listener of the fixture `tier`."""
        return RecordingListener()

    @pytest.fixture
    def tier(self, tmp_path: Path, listener: RecordingListener) -> Iterator[Tier]:
        """An empty tier, closed after the test."""
        with self.opened(tmp_path, listener) as tier:
            yield tier

    @contextmanager
    def opened(self, place: Path, listener: TierListener | None = None) -> Iterator[Tier]:
        """A tier that is closed after the block."""
        tier = self.open_tier(place, listener or TierListener())
        try:
            yield tier
        finally:
            tier.close(CLOSE_S)

    def fill(self, tier: Tier, times: int) -> list[Sample]:
        """Store chains of four until `times` the cap has been stored; none may be refused."""
        samples: list[Sample] = []
        cap_bytes = tier.usage().cap_bytes
        while sum(sample.length for sample in samples) < times * cap_bytes:
            outcomes = Outcomes(tier)
            for link in chain(f"fill {len(samples)}", [30_000, 20_001, 4096, 60_000]):
                outcomes.store(link)
                samples.append(link)
                assert tier.usage().used_bytes <= cap_bytes
            outcomes.wait()
            assert len(outcomes.stored) == 4, outcomes.dropped
        return samples


def store(tier: Tier, sample: Sample) -> Stored | Dropped:
    """Store a sample's own payload and wait."""
    return blocking.store(tier, sample.name, sample.payload, HANG_S)


def load(tier: Tier, sample: Sample) -> tuple[LoadOutcome, bytes]:
    """Load a sample and wait."""
    return blocking.load(tier, sample.name, sample.length, HANG_S, FOREVER)


def keys(samples: list[Sample]) -> list[bytes]:
    """The full keys of samples."""
    return [sample.name.key for sample in samples]


def prefix_of(tier: Tier, asked: list[bytes]) -> int:
    """How many of these keys a tier has; asks again until the tier knows."""
    eventually(lambda: not tier.prefix(asked).is_unknown)
    return tier.prefix(asked).chunks


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds that another thread brings about."""
    until = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.001)
