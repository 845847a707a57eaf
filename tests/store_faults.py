"""What tests of faults share, whichever store it is: exact or a miss, and the tier comes back."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from tests.remote_harness import PATIENT

from forebay.testing.conformance import load, store
from forebay.testing.samples import Sample, single
from forebay.tiers.contract import Hit, Miss, Stored
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
