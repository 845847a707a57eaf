"""Every check of the pool finds its planted case, on real pools where one can be planted there."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.observe.doctor.harness import (
    GIB,
    MIB,
    Machine,
    facts_of,
    finds,
    is_fine,
    is_skipped,
    with_snapshot,
)
from tests.other_user import OTHER_UID, asked_by_other_user, needs_root
from tests.pool_process import (
    SMALL,
    PatientClient,
    PoolProcess,
    environment,
    made,
    running_pool,
    serving,
    short_directory,
    wait_until,
    with_disk,
)

from forebay import __version__
from forebay.observe.doctor.facts import Facts
from forebay.observe.doctor.finding import Severity
from forebay.pool.address import PoolAddress
from forebay.settings import Settings
from forebay.sys.clock import Clock

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as made:
        yield made


def test_where_no_pool_runs_most_is_skipped(place: Path) -> None:
    facts = facts_of(place)
    for name in ("socket", "lock", "permissions"):
        is_fine(f"pool.{name}", facts)
    for name in ("version", "sizes", "drives", "engines", "hits"):
        is_skipped(f"pool.{name}", facts)


def test_a_pool_that_is_well_is_fine(place: Path) -> None:
    """A thread of ours is the pool, with a drive, and a script has joined it."""
    settings = with_disk(place)
    with serving(place, settings) as service, PatientClient(service.address.path) as client:
        assert client.join()
        facts = facts_of(place, settings=settings)
        for name in ("socket", "lock", "permissions", "version", "sizes", "drives"):
            is_fine(f"pool.{name}", facts)
        is_fine("memory.gpu_cache", replaced_cache(facts))
        is_skipped("pool.hits", facts)
        finds("pool.engines", facts, Severity.NOTE, "No engine has joined")


def replaced_cache(facts: Facts) -> Facts:
    """The same where the engine's own cache is smaller than the running pool's DRAM."""
    return Facts(replace(facts.inputs, gpu_cache_bytes=MIB), clock=facts.clock)


def test_a_socket_that_a_killed_pool_left(place: Path) -> None:
    with running_pool(place, disk=False) as pool:
        pool.kill()
        facts = facts_of(place)
        finds("pool.socket", facts, Severity.WARNING, "left over", "Start a pool again")
        is_fine("pool.lock", facts)


def test_a_pool_that_is_stopped_and_does_not_answer(place: Path) -> None:
    with running_pool(place, disk=False) as pool:
        pool.signal(signal.SIGSTOP)
        facts = facts_of(place, clock=Clock())
        finds("pool.lock", facts, Severity.WARNING, f"Process {pool.pid}", f"kill {pool.pid}")
        finds("pool.socket", facts, Severity.WARNING, "does not answer", "stopped, or hangs")
        is_skipped("pool.version", facts)


def test_what_is_no_socket(place: Path) -> None:
    (place / "pool.sock").write_text("")
    finds("pool.socket", facts_of(place), Severity.PROBLEM, "is no socket", "Remove it")


def test_a_socket_whose_path_is_too_long(place: Path) -> None:
    facts = facts_of(place, settings=Settings(socket=str(place / ("x" * 200))))
    finds("pool.socket", facts, Severity.PROBLEM, "at most 107")


@needs_root
def test_a_lock_of_another_user(place: Path) -> None:
    (place / "pool.sock.lock").write_text("")
    os.chown(place / "pool.sock.lock", OTHER_UID, OTHER_UID)
    finds("pool.lock", facts_of(place), Severity.PROBLEM, f"user {OTHER_UID}", "another --socket")


def test_a_directory_in_which_others_could_replace_the_socket(place: Path) -> None:
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    facts = facts_of(place / "open")
    finds("pool.permissions", facts, Severity.PROBLEM, "written by others", "mode 700")
    facts = facts_of(place / "none")
    finds("pool.permissions", facts, Severity.PROBLEM, "No such file", "mkdir -m 700")


@needs_root
def test_a_pool_that_refuses_this_user(place: Path) -> None:
    """Root's pool serves user 65533 alone, and the doctor runs as another one."""
    place.chmod(0o755)
    with serving(place, replace(SMALL, allow_uid=(65533,))):

        def seen() -> str:
            facts = facts_of(place, settings=Settings(allow_uid=(0,)))
            finds("pool.permissions", facts, Severity.PROBLEM, "may not join", "--allow-uid")
            return "found"

        assert asked_by_other_user(seen) == "found"


@contextmanager
def other_release(place: Path, file: str, old: str, new: str) -> Iterator[PoolProcess]:
    """A pool of a Forebay in which one line reads otherwise."""
    shutil.copytree(SOURCE / "forebay", place / "other" / "forebay")
    changed = place / "other" / "forebay" / file
    text = changed.read_text()
    assert text.count(old) == 1
    changed.write_text(text.replace(old, new))
    pool = PoolProcess(place, disk=False)
    variables = {**environment(), "PYTHONPATH": str(place / "other")}
    with pool.log.open("ab") as log:
        pool.process = subprocess.Popen(
            pool.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables
        )
    try:
        wait_until(lambda: "serving at" in pool.log.read_text(), "the other release to serve")
        yield pool
    finally:
        pool.kill()


def test_a_pool_of_another_version(place: Path) -> None:
    with other_release(place, "__init__.py", f'"{__version__}"', '"9.8.7"'):
        finds("pool.version", facts_of(place), Severity.WARNING, "Forebay 9.8.7", "of one version")


def test_a_pool_of_another_protocol(place: Path) -> None:
    with other_release(place, "pool/messages.py", "PROTOCOL: Final = ", "PROTOCOL: Final = 90 + "):
        facts = facts_of(place)
        finds("pool.version", facts, Severity.PROBLEM, "speaks protocol 9", "restart the pool")
        is_fine("pool.permissions", facts)


def test_a_pool_of_other_sizes(place: Path) -> None:
    with serving(place, SMALL):
        facts = facts_of(place, settings=Settings(dram=2 * GIB))
        finds("pool.sizes", facts, Severity.WARNING, "16 MiB of dram where 2 GiB", "forebay set")
        is_fine("pool.sizes", facts_of(place))


def test_a_drive_that_is_off(tmp_path: Path) -> None:
    def volumes(name: str = "disk", **volume: Any) -> list[dict[str, Any]]:
        return [{"name": name, "volumes": [{"path": "/mnt/nvme", "errors": 0, **volume}]}]

    machine = Machine(tmp_path)
    off = with_snapshot(machine.facts(), tiers=volumes(is_on=False))
    finds("pool.drives", off, Severity.WARNING, "switched /mnt/nvme off", "smartctl")
    failing = with_snapshot(machine.facts(), tiers=volumes(is_on=True, errors=3))
    finds("pool.drives", failing, Severity.NOTE, "failed 3 times")
    store = with_snapshot(machine.facts(), tiers=volumes("remote2", is_on=False))
    finds("pool.drives", store, Severity.WARNING, "switched /mnt/nvme off", "remote check")


def test_engines_that_share_nothing(tmp_path: Path) -> None:
    def engines(*states: str, releases: tuple[str, ...] = ("vLLM 0.32.0",) * 2) -> Facts:
        listed = [
            {"model": "m", "engine": release, "sharing": state, "why": "pooling is not supported"}
            for state, release in zip(states, releases, strict=False)
        ]
        return with_snapshot(Machine(tmp_path).facts(), engines=listed)

    is_fine("pool.engines", engines("sharing", "sharing"))
    declined = engines("sharing", "declined")
    finds("pool.engines", declined, Severity.WARNING, "vLLM 0.32.0 with m", "pooling is not")
    finds("pool.engines", engines("hashing_weights"), Severity.NOTE, "hashing its weights")
    finds("pool.engines", engines(), Severity.NOTE, "No engine has joined")
    mixed = engines("sharing", "sharing", releases=("vLLM 0.31.0", "vLLM 0.32.0"))
    finds("pool.engines", mixed, Severity.NOTE, "vLLM 0.31.0, vLLM 0.32.0", "one release")


def test_a_hundred_lookups_that_found_nothing(place: Path) -> None:
    """As with a salt of its own for every request: each chain is another one."""
    with serving(place, SMALL) as service, PatientClient(service.address.path) as client:
        for number in range(100):
            client.lookup(made(f"salt {number}", 1, 4096)[1])
        facts = facts_of(place)
        finds("pool.hits", facts, Severity.WARNING, "None of 100 lookups", "cache_salt")
        chunks, chain = made("known", 1, 4096)
        client.store(chain, [chunk.payload for chunk in chunks])
        client.lookup(chain)
        is_fine("pool.hits", facts_of(place))


def test_another_pool_on_this_host(place: Path, tmp_path: Path) -> None:
    """The kernel's own files name it; a machine without sockets has none."""
    is_fine("pool.others", Machine(tmp_path).facts())
    (place / "other").mkdir(mode=0o700)
    with serving(place / "other", SMALL) as service:
        other: PoolAddress = service.address
        facts = facts_of(place)
        finds("pool.others", facts, Severity.NOTE, other.path, "one socket")
