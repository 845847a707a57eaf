"""A tier in memory that takes loads in, and answers them when a test says so."""

from collections.abc import Callable, Sequence

from tests.tiers.slow_memory import LoadDone, SlowMemoryTier

from forebay.record.header import RecordName
from forebay.record.region import short
from forebay.sys.world import World
from forebay.tiers.contract import TierListener, UsedRecord


class GatedTier(SlowMemoryTier):
    """Takes loads in, and answers them when it is told to."""

    comes_back = True

    def __init__(self, listener: TierListener, world: World) -> None:
        super().__init__(listener, world=world)
        self.begun: list[bytes] = []
        self.waiting: list[Callable[[], None]] = []
        self.takes, self.is_open = True, False
        self.told: list[list[UsedRecord]] = []

    def takes_stores(self) -> bool:
        return self.takes

    def submit_load(
        self, name: RecordName, target: memoryview, done: LoadDone, deadline: float
    ) -> None:
        self.begun.append(short(name.key))
        submit = super().submit_load
        if self.is_open:
            submit(name, target, done, deadline)
        else:
            self.waiting.append(lambda: submit(name, target, done, deadline))

    def publish_used(self, records: Sequence[UsedRecord]) -> None:
        self.told.append(list(records))

    def answer_all(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()
