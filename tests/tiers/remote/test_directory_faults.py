"""A tier on a shared directory, whatever its file system does: exact or a miss, and it comes back.

What a mount of NFS or Lustre says in such a case is said by a faulty disk, in the child.
"""

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.faulty_child import rule_of
from tests.remote_harness import url_of
from tests.store_faults import EAGER, check_fault, is_loaded, opened, until_true

from forebay.testing.conformance import store
from forebay.testing.samples import single
from forebay.tiers.contract import Stored
from forebay.tiers.remote.process.link import Link

ROOT = Path(__file__).parent.parent.parent.parent
# Of a call that hangs, or crawls, this is the end; on a busy machine of others too, now and then.
HASTY = replace(EAGER, call_s=1.5, put_s=1.5, maintenance_s=3.0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setattr(
        "forebay.tiers.remote.tier.Link", partial(Link, module="tests.faulty_child")
    )
    found = tmp_path / "shared"
    found.mkdir(mode=0o700)
    return found


@pytest.mark.parametrize(
    "fault",
    [
        *("*:errno=EIO", "*:errno=ESTALE", "*:errno=ETIMEDOUT", "*:errno=EAGAIN"),  # gone, or busy
        *("*:errno=EACCES", "*:errno=EKEYEXPIRED"),  # what lets us in has expired
        *("write:errno=ENOSPC", "write:errno=EDQUOT", "rename:errno=EIO"),
        *("read:flip=1", "read:short=100", "write:tear=4096", "read:misdirect=4096"),
    ],
)
def test_t61_exact_or_a_miss_and_it_comes_back(place: Path, fault: str) -> None:
    rule = rule_of(place)
    with opened(url_of(place)) as tier:
        check_fault(tier, lambda: rule.write_text(fault), rule.unlink, length=20_000)


@pytest.mark.parametrize("fault", ["*:hang", "read:latency=60s", "write:latency=60s"])
def test_t25_t61_a_mount_that_hangs_or_crawls_costs_a_child(place: Path, fault: str) -> None:
    rule, sample = rule_of(place), single("beside it")
    with opened(url_of(place), options=HASTY) as tier:
        until_true(lambda: store(tier, sample) == Stored() or is_loaded(tier, sample))
        starts = tier.parts.link.starts
        check_fault(tier, lambda: rule.write_text(fault), rule.unlink, length=20_000)
        assert tier.parts.link.starts > starts
        until_true(lambda: is_loaded(tier, sample))
