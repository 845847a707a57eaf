"""Pools' tiers on S3, whatever it does: exact or a miss, and they come back by themselves."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lying_http import LyingProxy
from tests.remote_harness import PATIENT, SHARING
from tests.seaweed import BUCKET, S3Server

from forebay.cli.main import main
from forebay.testing.conformance import keys, load, store
from forebay.testing.samples import Sample, chain, single
from forebay.tiers.contract import Hit, Miss, Stored
from forebay.tiers.remote.options import RemoteOptions
from forebay.tiers.remote.tier import RemoteTier

pytestmark = pytest.mark.stores

# A store that was left alone is tried again soon; calls take as long as they take.
EAGER = replace(PATIENT, probe_interval_s=0.05, error_window_s=0.5, forgotten_s=0.5)
# Of these a call ends only by its deadline, which also holds while the store is sound again.
SLOW = {"stalled", "silent", "dripping"}
SLOW_S = 5.0
LOOKING = replace(EAGER, refresh_s=0.02)  # at what other hosts have, all the time
AGES_S = 600.0  # a guard against hanging alone


def url_of(endpoint: str, prefix: str, timeout_s: float = 600.0) -> str:
    options = f"cap=3MiB&endpoint={endpoint}&region=us-east-1&timeout={timeout_s}"
    return f"s3://{BUCKET}/{prefix}?{options}"


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


@pytest.mark.parametrize(
    "fault",
    [
        *("busy", "expired", "gone", "unknown", "quota", "redirected", "no_http", "reset"),
        *("truncated", "short", "shifted", "whole_object", "too_long", "endless"),
        *("endless_chunked", "flipped", "stuffed", "stalled", "silent", "dripping"),
    ],
)
def test_exact_or_a_miss_and_it_comes_back(s3: S3Server, prefix: str, fault: str) -> None:
    before, meanwhile, after = (single(name) for name in ("before", "meanwhile", "after"))
    timeout_s = SLOW_S if fault in SLOW else 600.0
    with LyingProxy(s3.url) as proxy, opened(url_of(proxy.url, prefix, timeout_s)) as tier:
        until_true(lambda: is_stored(tier, before))
        until_true(lambda: is_loaded(tier, before))
        proxy.fault = fault
        is_loaded(tier, before)
        store(tier, meanwhile)
        is_loaded(tier, meanwhile)
        proxy.fault = ""
        until_true(lambda: is_stored(tier, after))
        until_true(lambda: is_loaded(tier, after))
        until_true(lambda: is_stored(tier, before))
        until_true(lambda: is_loaded(tier, before))


def test_a_listing_without_an_end_costs_a_child_and_no_memory(s3: S3Server, prefix: str) -> None:
    sample = single("beside it")
    with LyingProxy(s3.url) as proxy, opened(url_of(proxy.url, prefix), options=LOOKING) as tier:
        until_true(lambda: is_stored(tier, sample))
        starts, proxy.methods = tier.parts.link.starts, {"GET"}
        proxy.fault = "endless"
        until_true(lambda: tier.parts.link.starts > starts)
        proxy.fault = ""
        until_true(lambda: is_loaded(tier, sample))


def test_hosts_find_each_others_chunks(s3: S3Server, prefix: str) -> None:
    dialog = chain("dialog", [5000, 6000, 7000])
    url = url_of(s3.url, prefix)
    with opened(url, "a", SHARING) as a, opened(url, "b", SHARING) as b:
        assert [store(a, each) for each in dialog] == [Stored()] * 3
        until_true(lambda: b.prefix(keys(dialog)).chunks == 3)
        assert [load(b, each)[1] for each in dialog] == [each.payload for each in dialog]
    with opened(url, "c", SHARING) as late:
        until_true(lambda: late.prefix(keys(dialog)).chunks == 3)
        assert [load(late, each)[1] for each in dialog] == [each.payload for each in dialog]


def test_a_store_can_be_tried_from_the_command_line(
    s3: S3Server, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{BUCKET}/{prefix}?cap=1GiB&endpoint={s3.url}&region=us-east-1&timeout=600"
    assert main(["remote", "check", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stored"], found["loaded"], found["deleted"]) == (16, 16, 16)
    assert found["store"] == f"s3://{BUCKET}/{prefix}"


def test_without_its_package_it_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("forebay.tiers.remote.stores.opening.find_spec", lambda name: None)
    assert main(["remote", "check", "s3://bucket/prefix?cap=1GiB"]) == 2
    assert capsys.readouterr().err == (
        "forebay: s3://bucket/prefix needs the package obstore; install it with:"
        " pip install 'forebay[s3]'.\n"
    )
