"""The disk tier against chance."""

import os
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from tests.encryption_harness import encrypted

from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.samples import NAMESPACE
from forebay.testing.stateful import TierMachine
from forebay.tiers.contract import Tier
from forebay.tiers.disk import Directory, DiskTier, Options

SMALL = Options(region_bytes=1 << 17, read_depth=2, write_depth=2, tick_s=0.01)
CAP_BYTES = 3 << 19
EXAMPLES = int(os.environ.get("FOREBAY_EXAMPLES", "40"))


class DiskMachine(TierMachine):
    options: ClassVar = SMALL

    def open_tier(self, place: Path, disk: FaultDisk, clock: ManualClock) -> Tier:
        return DiskTier.open([Directory(str(place), CAP_BYTES)], self.options, World(disk, clock))

    @precondition(lambda self: not self.clogged)  # an erasure waits for the medium
    @rule(namespace=st.sampled_from([None, NAMESPACE, bytes(32)]))
    def erase(self, namespace: bytes | None) -> None:
        assert isinstance(self.tier, DiskTier)
        self.tier.erase(namespace)
        assert namespace == bytes(32) or not self.tier.usage().records


class EncryptedDiskMachine(DiskMachine):
    options = encrypted(SMALL)


def run(machine: type[DiskMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
            deadline=None,
        ),
    )


def test_t28_a_load_is_a_miss_or_exactly_what_was_stored() -> None:
    run(DiskMachine, examples=15, steps=25)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [DiskMachine, EncryptedDiskMachine])
def test_t28_a_load_is_a_miss_or_exactly_what_was_stored_at_length(
    machine: type[DiskMachine],
) -> None:
    run(machine, EXAMPLES, steps=50)
