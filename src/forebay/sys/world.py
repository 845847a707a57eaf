"""The seams to the world and the barrier, as one object that tiers take."""

from dataclasses import dataclass, field

from forebay.barrier import Barrier
from forebay.sys.clock import Clock
from forebay.sys.disk import Disk


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside the process (real, except in tests), and the barrier that catches bugs."""

    disk: Disk = field(default_factory=Disk)
    clock: Clock = field(default_factory=Clock)
    barrier: Barrier = field(default_factory=Barrier)  # behind which the jobs of a pool run
