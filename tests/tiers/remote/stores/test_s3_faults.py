"""Pools' tiers on S3, whatever it does: exact or a miss, and they come back by themselves."""

import json
from pathlib import Path

import pytest
from tests.lying_http import LyingProxy
from tests.remote_harness import SHARING
from tests.seaweed import BUCKET, S3Server
from tests.store_faults import (
    AGES_S,
    LOOKING,
    SLOW,
    SLOW_S,
    check_fault,
    check_warm_start,
    is_loaded,
    is_stored,
    opened,
    until_true,
)

from forebay.cli.main import main
from forebay.testing.conformance import keys, load, store
from forebay.testing.samples import chain, single
from forebay.tiers.contract import Stored

pytestmark = pytest.mark.stores


def url_of(endpoint: str, prefix: str, timeout_s: float = AGES_S) -> str:
    options = f"cap=3MiB&endpoint={endpoint}&region=us-east-1&timeout={timeout_s}"
    return f"s3://{BUCKET}/{prefix}?{options}"


@pytest.mark.parametrize(
    "fault",
    [
        *("busy", "expired", "gone", "unknown", "quota", "redirected", "no_http", "reset"),
        *("truncated", "short", "shifted", "whole_object", "too_long", "endless"),
        *("endless_chunked", "flipped", "stuffed", "stalled", "silent", "dripping"),
    ],
)
def test_t25_t26_t27_t61_exact_or_a_miss_and_it_comes_back(
    s3: S3Server, prefix: str, fault: str
) -> None:
    timeout_s = SLOW_S if fault in SLOW else AGES_S
    with LyingProxy(s3.url) as proxy, opened(url_of(proxy.url, prefix, timeout_s)) as tier:
        check_fault(
            tier, lambda: setattr(proxy, "fault", fault), lambda: setattr(proxy, "fault", "")
        )


def test_t26_a_listing_without_an_end_costs_a_child_and_no_memory(
    s3: S3Server, prefix: str
) -> None:
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


def test_a_host_that_starts_hears_what_is_used(s3: S3Server, prefix: str) -> None:
    check_warm_start(url_of(s3.url, prefix))


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
        " pip install obstore.\n"
    )
