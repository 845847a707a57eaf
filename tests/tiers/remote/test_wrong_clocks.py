"""Hosts whose clocks are years apart, or that have one name: exact or a miss, and caps hold.

Ages are compared as the store noted them, and every other time is each host's own.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests import skewed_child
from tests.remote_harness import CAP_BYTES, SHARING, opened_remote, packs_in

from forebay.sys.clock import Clock
from forebay.sys.world import World
from forebay.testing.conformance import keys, load, store
from forebay.testing.conformance.hooks import eventually
from forebay.testing.samples import chain, single
from forebay.tiers.contract import Hit, Miss, Stored
from forebay.tiers.remote.process.link import Link
from forebay.tiers.remote.tier import RemoteTier

ROOT = Path(__file__).parent.parent.parent.parent
YEAR_S = 365 * 86_400.0
SWEEPING = replace(SHARING, sweep_s=0.02)


class SkewedClock(Clock):
    """Of a host that was started at another time, and whose date somebody has set wrongly."""

    def __init__(self, skew_s: float) -> None:
        self._skew_s = skew_s

    def monotonic(self) -> float:
        return super().monotonic() + max(0.0, self._skew_s)

    def day(self) -> int:
        return super().day() + int(self._skew_s // 86_400)


@contextmanager
def skewed(place: Path, host: str, skew_s: float) -> Iterator[RemoteTier]:
    """A tier on a host with such a clock; its child has it too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(skewed_child.SKEW, str(skew_s))
        patched.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
        link = partial(Link, module="tests.skewed_child")
        patched.setattr("forebay.tiers.remote.tier.Link", link)
        world = World(clock=SkewedClock(skew_s))
        with opened_remote(place, host, options=SWEEPING, world=world) as tier:
            yield tier


def leave_dead_host(place: Path) -> Path:
    """A pack of a host of which nobody has heard for two days, by the store's clock."""
    pack = place / "packs" / "00" / "dead" / "01"
    pack.parent.mkdir(parents=True, mode=0o700)
    pack.write_bytes(b"left")
    past_s = place.stat().st_mtime - 2 * 86_400.0
    os.utime(pack, (past_s, past_s))
    return pack


@pytest.mark.parametrize("skew_s", [YEAR_S, -YEAR_S])
def test_t47_t62_hosts_a_year_apart_share_and_delete_nothing_of_each_other(
    tmp_path: Path, skew_s: float
) -> None:
    links = chain("a year", [3000, 60_000, 5000])
    with skewed(tmp_path, "a", 0.0) as a, skewed(tmp_path, "b", skew_s) as b:
        assert [store(a, link) for link in links[:2]] == [Stored()] * 2
        eventually(lambda: b.prefix(keys(links)).chunks == 2)
        assert store(b, links[2]) == Stored()
        eventually(lambda: a.prefix(keys(links)).chunks == 3)
        left = leave_dead_host(tmp_path)
        eventually(lambda: not left.exists())  # the control: hosts that are dead are swept
        for tier in (a, b):
            for link in links:
                assert load(tier, link) == (Hit(link.length), link.payload)
        for number in range(60):
            store(b, single(f"flood {number}", 100_000))
            assert sum(path.stat().st_size for path in packs_in(tmp_path, "b")) <= CAP_BYTES
        assert load(a, links[0]) == (Hit(links[0].length), links[0].payload)
    with skewed(tmp_path, "b", -skew_s) as again:  # somebody has set its clock right, and too far
        eventually(lambda: load(again, links[0]) == (Hit(links[0].length), links[0].payload))


def test_t62_two_hosts_of_one_name_are_exact_or_miss(tmp_path: Path) -> None:
    """Each takes the other's packs for its own, or does not know of them."""
    samples = [single(f"twin {number}", 9000) for number in range(12)]
    with skewed(tmp_path, "a", 0.0) as one, skewed(tmp_path, "a", YEAR_S) as other:
        for number, sample in enumerate(samples):
            store((one, other)[number % 2], sample)
        for tier in (one, other):
            for sample in samples:
                outcome, found = load(tier, sample)
                assert isinstance(outcome, Miss) or found == sample.payload
        assert load(one, samples[0])[0] == Hit(9000), "its own are found"
        with skewed(tmp_path, "b", 0.0) as third:
            eventually(lambda: any(third.has(sample.name.key) for sample in samples))
            for sample in samples:
                outcome, found = load(third, sample)
                assert isinstance(outcome, Miss) or found == sample.payload
    with skewed(tmp_path, "a", 0.0) as again:
        # What one of them had not published is read from the packs, beside everything else.
        eventually(lambda: all(again.has(sample.name.key) for sample in samples))
        assert [load(again, sample) for sample in samples] == [
            (Hit(9000), sample.payload) for sample in samples
        ], "nothing was lost"
