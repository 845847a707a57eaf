"""Random histories of a tier: Hypothesis stores, loads, evicts, corrupts, hangs, cuts the power.

Inherit from `TierMachine`, open your tier in its hook, and run `YourMachine.TestCase`. The
invariant is the first promise: a load is a miss, or exactly what was stored.
"""

import contextlib
import random
import shutil
import tempfile
from pathlib import Path
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.errors import DirectoryError
from forebay.testing.clock import ManualClock
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample, chain
from forebay.tiers.contract import Tier

CLOSE_S: Final = 20.0
CHAINS: Final = [chain(f"stateful {n}", [1, 30_000, 4096, 9001]) for n in range(6)]
samples = st.builds(lambda links, at: links[at], st.sampled_from(CHAINS), st.integers(0, 3))
seeds = st.integers(0, 2**32 - 1)
FAILURES: Final = (
    "read:errno=EIO@30%",
    "write:errno=EIO@30%",
    "write:errno=ENOSPC",
    "preallocate:errno=ENOSPC",
    "rename:errno=EIO",
    "write:tear=4096@30%",
    "write:tear=9000@30%",
    "write:misdirect=4096@30%",
    "read:misdirect=4096@30%",
    "read:flip=1@30%",
    "read:short=4096@30%",
    "write:short=0@30%",
)


class TierMachine(RuleBasedStateMachine):
    """The rules; `open_tier` is the hook."""

    def open_tier(self, place: Path, disk: FaultDisk, clock: ManualClock) -> Tier:
        """Open a tier in `place`, with this disk and this clock; may raise DirectoryError."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="forebay-stateful-"))
        self.clock = ManualClock()
        self.given: set[Sample] = set()  # ever given to the tier, even before a restart
        self.fills = 0
        self.clogged = False

    @initialize(seed=seeds)
    def begin(self, seed: int) -> None:
        """Open the tier for the first time."""
        self._open(seed)

    @rule(sample=samples)
    def store(self, sample: Sample) -> None:
        """Store a sample: it is stored, or dropped for a reason."""
        self.given.add(sample)
        self.outcomes.store(sample)
        self._settle()

    @rule(sample=samples)
    def load(self, sample: Sample) -> None:
        """Load a sample: a miss, or exactly what was stored."""
        self.outcomes.load(sample)
        self._settle()

    @rule()
    def load_everything(self) -> None:
        """Load every sample at once."""
        for links in CHAINS:
            for sample in links:
                self.outcomes.load(sample)
        self._settle()

    @rule(sample=samples)
    def remove(self, sample: Sample) -> None:
        """Forget a record and all that continue it."""
        self.tier.remove(sample.name.key)

    @rule(links=st.sampled_from(CHAINS))
    def count_prefix(self, links: list[Sample]) -> None:
        """Look up a chain: no chunk may be found that was not given."""
        count = self.tier.prefix([link.name.key for link in links]).chunks
        assert set(links[:count]) <= self.given

    @precondition(lambda self: not self.clogged)
    @rule(share=st.sampled_from([0.2, 1.2]))
    def evict(self, share: float) -> None:
        """Store enough to evict a part, or all, of what is there."""
        missing = self.tier.usage().cap_bytes * share
        while missing > 0:
            self.fills += 1
            for link in chain(f"fill {self.fills}", [60_000, 20_000]):
                self.outcomes.store(link)
                missing -= link.length
            self._settle()

    @rule(seed=seeds)
    def lose_power(self, seed: int) -> None:
        """Keep, lose or tear what had not reached the medium; then open the tier again."""
        self.disk.seed = seed
        self.disk.power_off()
        self._end()
        self._open(seed)

    @rule()
    def settle(self) -> None:
        """Let the kernel write everything back."""
        self.disk.settle()

    @rule(seed=seeds)
    def reopen(self, seed: int) -> None:
        """Close the tier and open it again."""
        self._unclog()
        self._end()
        self._open(seed)

    @rule(seed=seeds)
    def corrupt(self, seed: int) -> None:
        """Flip a bit in some file, without the tier noticing."""
        draw = random.Random(seed)
        paths = [path for path in sorted(self.place.iterdir()) if path.stat().st_size]
        if not paths:
            return
        path = draw.choice(paths)
        with path.open("r+b") as file:
            at = draw.randrange(path.stat().st_size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << draw.randrange(8)]))

    @rule(operation=st.sampled_from(["read", "write"]))
    def clog(self, operation: str) -> None:
        """Let calls of one kind hang."""
        self.disk.arm(f"{operation}:hang")
        self.clogged = True

    @rule(failure=st.sampled_from(FAILURES))
    def fail(self, failure: str) -> None:
        """Let calls of one kind fail now and then."""
        self.disk.arm(failure)

    @rule()
    def heal(self) -> None:
        """Remove all faults."""
        self._unclog()
        self._settle()

    @rule(seconds=st.sampled_from([0.1, 5.0, 3600.0]))
    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)

    @invariant()
    def serves_nothing_wrong(self) -> None:
        """No load has returned wrong bytes, or bytes that were never given."""
        if hasattr(self, "tier"):
            assert not self.outcomes.wrong
            assert set(self.outcomes.hits) <= self.given

    @invariant()
    def stays_within_its_cap(self) -> None:
        """The tier is within its cap, by its own account and by the blocks of its files."""
        if hasattr(self, "tier"):
            usage = self.tier.usage()
            assert usage.used_bytes <= usage.cap_bytes
            total = 0
            for path in (self.place, *self.place.iterdir()):
                with contextlib.suppress(FileNotFoundError):  # a region may be removed meanwhile
                    total += path.lstat().st_blocks * 512
            assert total <= usage.cap_bytes

    def teardown(self) -> None:
        """Everything that was submitted gets an outcome."""
        if hasattr(self, "tier"):
            self._unclog()
            self._end()
        shutil.rmtree(self.place)

    def _open(self, seed: int) -> None:
        self.disk = FaultDisk(seed=seed, volatile=True)
        try:
            self.tier = self.open_tier(self.place, self.disk, self.clock)
        except DirectoryError:
            # A region's first bytes may be damaged beyond recognition; an operator would move it.
            for path in self.place.iterdir():
                path.unlink()
            self.tier = self.open_tier(self.place, self.disk, self.clock)
        self.outcomes = Outcomes(self.tier)

    def _end(self) -> None:
        self.tier.close(CLOSE_S)
        self.outcomes.wait()
        self.clogged = False

    def _unclog(self) -> None:
        self.disk.disarm()
        self.clogged = False

    def _settle(self) -> None:
        if not self.clogged:
            self.outcomes.wait()
