"""A request hears why what it was told of cannot be had, also if nobody read it in between."""

from functools import partial
from pathlib import Path

from tests.core_harness import LENGTH, Client, CoreHarness, chain

from forebay.decisions import Decision
from forebay.metrics.reading import tier_of
from forebay.pool.messages import Outcome, RequestOutcomes, RequestsQuery
from forebay.pool.session import ProbeResult
from forebay.sys.world import World
from forebay.testing.clock import ManualClock
from forebay.testing.faultdisk import FaultDisk
from forebay.tiers.disk.options import Options

MIB = 1 << 20
SLOTS = 32


def has_told(told: list[ProbeResult], times: int) -> bool:
    return sum(each.tier == "disk" for each in told) >= times


def test_a_tier_that_went_off_between_lookup_and_ask(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    core = CoreHarness(SLOTS * LENGTH, tmp_path, 64 * MIB)
    for name, count in (("long", 12), ("other", 4)):
        core.store(Client("e"), chain(name, count))
    core.pool.close(300)
    disk, client = FaultDisk(), Client("e")
    core = CoreHarness(SLOTS * LENGTH, tmp_path, 64 * MIB, World(disk, ManualClock()))
    disk.arm("read:hang")
    core.lookup(client, chain("long", 12))  # as much is read ahead as there may be at once
    number, found = core.lookup(client, chain("other", 4))
    assert found.known == 4
    disk.arm("write:errno=EIO")
    told: list[ProbeResult] = []
    for number_of_errors in range(1, Options().errors_max + 1):
        core.pool.probe(told.append)
        core.until(partial(has_told, told, number_of_errors))
    core.until(lambda: not tier_of(core.pool.stats(), "disk")["volumes"][0]["is_on"])
    assert core.ask(client, number, chain("other", 4)).total == 0
    outcome = Outcome("r", "promise_too_small", "", number, 64, 0, 64, [], 64, 0, 0, 0, 0, False)
    core.pool.handle(client, RequestOutcomes([outcome]))
    (request,) = core.pool.requests(RequestsQuery("", 1, 0))
    assert request.decision is Decision.TIER_OFF
    disk.disarm()
    core.pool.close(300)
