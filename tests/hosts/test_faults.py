"""Hosts that die and hosts that are cut off: exact or a miss, and all come back by themselves."""

import pytest
from tests.hosts.conftest import StartPool
from tests.hosts.network import Network
from tests.hosts.sharing import (
    CHUNKS,
    failures,
    load,
    send,
    sent_chunks,
    share,
    store,
    wait_for_found,
    wait_for_sent,
    wait_for_use,
    wait_until,
)
from tests.hosts.stores import SharedStore

pytestmark = pytest.mark.hosts


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("url", ["s3", "juicefs", "valkey", "mooncake"], indirect=True)
def test_t62_a_host_is_killed_while_it_publishes(
    hosts: Network, start: StartPool, url: str, moment: str
) -> None:
    """Before anything is in the store; with packs that nobody knows of yet; with all of it told."""
    a, b = start(hosts.a, url), start(hosts.b, url)
    wait_for_use(a)
    wait_for_use(b)
    dialog = "dialog"
    if moment == "after":
        (dialog,) = share(a, b, "dialog")
    else:
        store(a, dialog)
    if moment == "during":
        wait_for_sent(a, 1)
    sent = sent_chunks(a)
    a.kill()
    load(b, dialog)
    if moment == "after":
        wait_until(lambda: load(b, dialog) == CHUNKS, "what a dead host has published")
    again = start(hosts.a, url)
    wait_for_use(again)
    assert sent_chunks(again) >= sent, "its packs are its own again"
    if moment != "before":
        wait_until(lambda: load(again, dialog) > 0, "what it has sent")
    (following,) = share(again, b, "next")
    wait_until(lambda: load(b, following) == CHUNKS, "what it sends from now on")


@pytest.mark.parametrize("url", ["s3", "valkey", "mooncake"], indirect=True)
def test_t62_a_host_is_cut_off_and_comes_back(hosts: Network, start: StartPool, url: str) -> None:
    a, b = start(hosts.a, url), start(hosts.b, url)
    wait_for_use(a)
    wait_for_use(b)
    dialog, other = share(a, b, "dialog", "other")
    hosts.cut(hosts.b)
    try:
        assert load(b, dialog) == 0, "the store is out of reach"
        assert failures(b) > 0
        store(b, "meanwhile")
        beyond = send(a, "beyond")
    finally:
        hosts.heal()
    wait_until(lambda: load(b, other) == CHUNKS, "loads from the store")
    wait_for_found(b, beyond)
    wait_for_found(a, send(b, "after"))


@pytest.mark.parametrize("url", ["s3"], indirect=True)
def test_t25_t62_the_store_dies_and_comes_back(
    hosts: Network, start: StartPool, url: str, s3: SharedStore
) -> None:
    a, b = start(hosts.a, url), start(hosts.b, url)
    wait_for_use(a)
    wait_for_use(b)
    dialog, other = share(a, b, "dialog", "other")
    with s3.killed():
        assert load(b, dialog) == 0, "the store is gone"
        for pool, label in ((a, "of a"), (b, "of b")):
            store(pool, label)
    wait_until(lambda: load(b, other) == CHUNKS, "loads from the store")
    for source, target in ((a, b), (b, a)):
        wait_for_found(target, send(source, f"after, of {source.place.name}"))


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_t61_a_file_system_that_is_mounted_anew_is_used_again(
    hosts: Network, start: StartPool, url: str
) -> None:
    """What a pool may write is not tied to what lay at its path when it began."""
    place = url.removeprefix("file://")

    def mount() -> None:
        hosts.a.run("mount", "-t", "tmpfs", "-o", "mode=700", "forebay", place)
        hosts.a.run("mkdir", "-m", "700", f"{place}/inner")

    pool = start(hosts.a, f"{url}/inner")
    mount()
    try:
        wait_for_use(pool)
        send(pool, "before")
        failed = failures(pool)
        hosts.a.run("umount", "--lazy", place)
        wait_until(lambda: failures(pool) > failed, "a call that fails")
    finally:
        mount()
    send(pool, "after")
