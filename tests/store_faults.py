"""What tests of faults share, whichever store it is: exact or a miss, and the tier comes back."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from tests.remote_harness import PATIENT

from forebay.record.region import short
from forebay.testing.conformance import load, store
from forebay.testing.samples import Sample, single
from forebay.tiers.contract import Hit, Miss, Stored, TierListener, UsedRecord, WarmStart
from forebay.tiers.remote.options import RemoteOptions
from forebay.tiers.remote.tier import RemoteTier

# A store that was left alone is tried again soon; calls take as long as they take.
EAGER: Final = replace(PATIENT, probe_interval_s=0.05, error_window_s=0.5, forgotten_s=0.5)
LOOKING: Final = replace(EAGER, refresh_s=0.02)  # at what other hosts have, all the time
# Of these a call ends only by its deadline, which also holds while the store is sound again.
SLOW: Final = {"stalled", "silent", "dripping"}
SLOW_S: Final = 5.0
AGES_S: Final = 600.0  # a guard against hanging alone


@contextmanager
def opened(url: str, host: str = "a", options: RemoteOptions = EAGER) -> Iterator[RemoteTier]:
    tier = RemoteTier.open(url, host, options)
    try:
        yield tier
    finally:
        tier.close(60)


class WarmListener(TierListener):
    """Keeps what it is offered."""

    def __init__(self) -> None:
        self.offered: list[WarmStart] = []

    def warm_start(self, offered: WarmStart) -> None:
        self.offered.append(offered)


def check_warm_start(url: str) -> None:
    """What one host tells to be used, the next one that starts is offered, and can load."""
    sample, listener = single("used"), WarmListener()
    name = sample.name
    used = UsedRecord(name.namespace, name.tenant, name.group, short(name.key), 7)
    with opened(url) as first:
        until_true(lambda: is_stored(first, sample))
        first.publish_used([used])
        until_true(lambda: not first.parts.used and first.upkeep.is_idle)
    second = RemoteTier.open(f"{url}&warm=1GiB", "b", EAGER, listener=listener)
    until_true(lambda: bool(listener.offered))
    assert listener.offered[0].records == [used]
    until_true(lambda: is_loaded(second, sample))
    second.close(60)


def until_true(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + AGES_S
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)


def is_loaded(tier: RemoteTier, sample: Sample) -> bool:
    """Whether it is a hit; bytes that are none of the sample's fail the test."""
    outcome, found = load(tier, sample)
    assert isinstance(outcome, Miss) or found == sample.payload
    return isinstance(outcome, Hit)


def is_stored(tier: RemoteTier, sample: Sample) -> bool:
    return store(tier, sample) == Stored() or is_loaded(tier, sample)


def check_fault(
    tier: RemoteTier, begin: Callable[[], object], end: Callable[[], object], length: int = 5000
) -> None:
    """Store and load before, during and after a fault: exact or a miss, and it comes back."""
    names = ("before", "meanwhile", "after")
    before, meanwhile, after = (single(name, length) for name in names)
    until_true(lambda: is_stored(tier, before))
    until_true(lambda: is_loaded(tier, before))
    begin()
    is_loaded(tier, before)
    store(tier, meanwhile)
    is_loaded(tier, meanwhile)
    end()
    for sample in (after, before):
        until_true(lambda sample=sample: is_stored(tier, sample))  # type: ignore[misc]
        until_true(lambda sample=sample: is_loaded(tier, sample))  # type: ignore[misc]
