"""Pools' tiers on Mooncake, whatever becomes of it: exact or a miss, and they come back."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mooncake_servers import Mooncake, damage_packs, packs_of, serving, settled
from tests.remote_harness import SHARING
from tests.store_faults import (
    LOOKING,
    check_fault,
    check_warm_start,
    is_loaded,
    is_stored,
    opened,
    until_true,
)

from forebay.cli.main import main
from forebay.sys import memory
from forebay.testing.conformance import keys, load, store
from forebay.testing.samples import chain, single
from forebay.tiers.contract import Dropped, DropReason, Stored
from forebay.tiers.remote.stores.mooncake.store import MooncakeStore
from forebay.urls import parse_url

pytestmark = pytest.mark.stores

AUDITING = replace(LOOKING, audit_s=0.05)
PAUSE_S = 5.0  # longer than the master waits for a sign of life; calls wait for it


@pytest.mark.parametrize("how", ["restarted", "stopped", "paused"])
def test_a_master_that_goes_away_costs_misses(tmp_path: Path, how: str) -> None:
    """Restarted, it knows nothing: what it had is a miss, and is stored again."""
    with serving(tmp_path) as servers:
        later = threading.Timer(PAUSE_S, servers.resume)

        def pause() -> None:
            servers.pause()
            later.start()

        begin: dict[str, Callable[[], object]] = {"paused": pause, "stopped": servers.stop}
        end: dict[str, Callable[[], object]] = {"paused": later.join, "stopped": servers.start}
        with opened(servers.url(), options=AUDITING) as tier:
            check_fault(
                tier, begin.get(how, servers.restart), end.get(how, lambda: None), length=20_000
            )


def test_the_process_that_held_everything_dies(tmp_path: Path) -> None:
    with serving(tmp_path) as servers, opened(servers.url(), options=AUDITING) as tier:
        check_fault(tier, servers.end_owners, servers.lend, length=20_000)


def test_a_process_that_holds_everything_hangs(tmp_path: Path) -> None:
    """The master still says where all of it is: whoever asks there waits until it moves again."""
    with serving(tmp_path) as servers, opened(servers.url(), options=AUDITING) as tier:
        later = threading.Timer(PAUSE_S, servers.resume_owners)

        def pause() -> None:
            servers.pause_owners()
            later.start()

        check_fault(tier, pause, later.join, length=20_000)


def test_with_replicas_the_death_of_one_process_costs_nothing(tmp_path: Path) -> None:
    samples = [single(f"chunk {number}") for number in range(5)]
    with serving(tmp_path) as servers:
        servers.lend()
        servers.wait_until_lent(2)
        url = servers.url(options="cap=3MiB&replicas=2")
        with opened(url, options=AUDITING) as tier:
            until_true(lambda: all(is_stored(tier, each) for each in samples))
            first = servers.owners.pop(0)
            first.kill()
            first.wait()
            until_true(lambda: all(is_loaded(tier, each) for each in samples))


def test_what_a_master_forgot_is_learnt_to_be_gone(tmp_path: Path) -> None:
    samples = [single(f"chunk {number}") for number in range(5)]
    with (
        serving(tmp_path) as servers,
        opened(servers.url(), options=AUDITING) as a,
        opened(servers.url(), "b", AUDITING) as b,
    ):
        assert [store(a, each) for each in samples] == [Stored()] * 5
        until_true(lambda: all(b.has(each.name.key) for each in samples))
        servers.restart()
        until_true(lambda: a.usage().records == 0 and a.usage().used_bytes == 0)
        until_true(lambda: not any(b.has(each.name.key) for each in samples))
        until_true(lambda: all(is_stored(a, each) for each in samples))
        until_true(lambda: all(is_loaded(b, each) for each in samples))


@pytest.mark.parametrize("lie", ["flipped", "another", "short", "longer"])
def test_other_bytes_than_were_put_are_a_miss(mooncake: Mooncake, prefix: str, lie: str) -> None:
    """Mooncake verifies nothing by itself."""
    url, samples = mooncake.url(prefix), [single("one", 9000), single("two", 9000)]
    with opened(url) as tier:
        assert [store(tier, each) for each in samples] == [Stored()] * 2
        assert all(is_loaded(tier, each) for each in samples)
        if lie == "flipped":
            damage_packs(url, "a")
        else:
            _exchange(url, lie)
        hits = [is_loaded(tier, each) for each in samples]
        assert hits == [lie == "longer"] * 2
        assert tier.volumes()[0].is_on
        after = single("after")
        until_true(lambda: is_stored(tier, after) and is_loaded(tier, after))


def _exchange(url: str, lie: str) -> None:
    """Have other bytes under the names of both packs."""
    beneath = MooncakeStore(parse_url(url), "a")
    names = packs_of(beneath, "a")
    (one, size), (two, _) = names.items()
    values = []
    for name in (one, two):
        buffer = memory.allocate(size)[:size]
        assert beneath.get(name, 0, [buffer]) == size
        values.append(bytes(buffer))
    if lie == "another":
        values.reverse()
    for name, value in zip((one, two), values, strict=True):
        told = {"short": value[:5000], "longer": value + value}.get(lie, value)
        settled(lambda name=name, told=told: beneath.put(name, [memoryview(told)]))  # type: ignore[misc]
    beneath.close()


def test_a_full_store_drops_stores_or_evicts_and_goes_on(tmp_path: Path) -> None:
    """The index is pinned; what is evicted is learnt of, and counts no more."""
    with serving(tmp_path, "--default_kv_lease_ttl=100", size="32 MB") as servers:
        url = servers.url(options="cap=1GiB")
        with opened(url, options=AUDITING) as a, opened(url, "b", AUDITING) as b:
            samples = [single(f"chunk {number}", 1_000_000) for number in range(60)]
            outcomes = [store(a, each) for each in samples]
            dropped = {each.reason for each in outcomes if isinstance(each, Dropped)}
            assert dropped <= {DropReason.NO_SPACE, DropReason.TIER_OFF}
            until_true(lambda: a.usage().used_bytes < 32 << 20)
            until_true(lambda: 0 < sum(is_loaded(a, each) for each in samples) < 40)
            until_true(lambda: a.volumes()[0].is_on)
            until_true(lambda: any(is_loaded(b, each) for each in samples))


def test_hosts_find_each_others_chunks(mooncake: Mooncake, prefix: str) -> None:
    dialog, url = chain("dialog", [5000, 6000, 7000]), mooncake.url(prefix)
    with opened(url, "a", SHARING) as a, opened(url, "b", SHARING) as b:
        assert [store(a, each) for each in dialog] == [Stored()] * 3
        until_true(lambda: b.prefix(keys(dialog)).chunks == 3)
        assert [load(b, each)[1] for each in dialog] == [each.payload for each in dialog]
    with opened(url, "c", SHARING) as late:
        until_true(lambda: late.prefix(keys(dialog)).chunks == 3)
        assert [load(late, each)[1] for each in dialog] == [each.payload for each in dialog]


def test_a_host_that_starts_hears_what_is_used(mooncake: Mooncake, prefix: str) -> None:
    check_warm_start(mooncake.url(prefix))


def test_a_store_can_be_tried_from_the_command_line(
    mooncake: Mooncake, prefix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    url = mooncake.url(prefix, "cap=1GiB")
    assert main(["remote", "check", url, "--json"]) == 0
    out, log = capfd.readouterr()
    found = json.loads(out)
    assert (found["stored"], found["loaded"], found["deleted"]) == (16, 16, 16)
    assert found["store"] == f"mooncake://{mooncake.address}/{prefix}"
    assert "mooncake" not in log.lower().replace(found["store"], ""), "its own log stays silent"
