"""A pool that is killed while a tenant is forgotten, loaded and stored: all is gone, or nothing."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.pool_process import (
    HANG_S,
    PatientClient,
    PoolProcess,
    environment,
    is_written,
    wait_until,
)

from forebay.identity.keys import ChainRoot, KeyChain
from forebay.identity.tenants import salt_hash, salt_key
from forebay.pool.client import Chain, Known, Loaded
from forebay.testing import samples

pytestmark = pytest.mark.slow
SECRET = "0123456789abcdef0123456789abcdef"
PAYLOADS = [bytes([number]) * 40_000 for number in range(1, 7)]
OTHERS = [bytes([number]) * 40_000 for number in range(101, 107)]
CHAINS = 20  # stored in a pool's life: nothing is evicted
# When it kills itself; the only file that is renamed is the list of the forgotten.
FATES = (
    "open+write+zero+sync+rename+unlink:kill=before@1",
    "open+write+zero+sync+rename+unlink:kill=after@4",
    "rename:kill=before@1",
    "rename:kill=after@1",
    "zero+unlink:kill=before@1",
    "zero+unlink:kill=after@1",
    "zero+unlink:kill=after@2",
    "",
)


def chain_of(salt: str, name: str = "") -> Chain:
    keys = KeyChain(ChainRoot(samples.NAMESPACE, 1, salt=salt + name)).extend(range(len(PAYLOADS)))
    return Chain(samples.NAMESPACE, keys, salt=salt)


@pytest.fixture
def pool(place: Path) -> Iterator[PoolProcess]:
    """Two tenants, each called as its salt."""
    (place / "key").write_text(f"{SECRET}\n")
    (place / "key").chmod(0o600)
    lines = [f'tenant_key_file = "{place / "key"}"']
    for name in ("gone", "kept"):
        digits = salt_hash(name, salt_key(SECRET.encode())).hex()
        lines += ["[[tenant]]", f'name = "{name}"', f'salts = ["{digits}"]']
    (place / "pool.toml").write_text("\n".join(lines) + "\n")
    (place / "faults").touch()
    flags = ("--config", str(place / "pool.toml"), "--faults-file", str(place / "faults"))
    pool = PoolProcess(place, *flags, faulty=True).start()
    yield pool
    if pool.process is not None and pool.process.poll() is None:
        pool.kill()


def store(pool: PoolProcess, salt: str, payloads: list[bytes]) -> None:
    with PatientClient(pool.socket) as client:
        receipt = client.store(chain_of(salt), payloads, timeout_s=HANG_S)
    assert receipt.stored + receipt.had == len(payloads)


def known(pool: PoolProcess, salt: str) -> int:
    with PatientClient(pool.socket) as client:
        found = client.lookup(chain_of(salt), timeout_s=HANG_S)
    assert isinstance(found, Known)
    return found.chunks


class Load:
    """One thread loads what is being forgotten, another stores more of the same tenant."""

    def __init__(self, pool: PoolProcess) -> None:
        self._pool, self._is_over = pool, threading.Event()
        self.loads, self.stores, self.wrong = 0, 0, 0

    def loading(self) -> None:
        with PatientClient(self._pool.socket) as client:
            while not self._is_over.is_set():
                with client.load(chain_of("gone")) as loaded:
                    if isinstance(loaded, Loaded):
                        pairs = zip(loaded.chunks, PAYLOADS, strict=False)
                        self.wrong += any(view != payload for view, payload in pairs)
                self.loads += 1
                self._is_over.wait(0.01)

    def storing(self) -> None:
        with PatientClient(self._pool.socket) as client:
            for number in range(CHAINS):
                if self._is_over.is_set():
                    return
                client.store(chain_of("gone", str(number)), OTHERS, timeout_s=HANG_S)
                self.stores += 1

    @contextmanager
    def running(self) -> Iterator["Load"]:
        threads = [threading.Thread(target=each) for each in (self.loading, self.storing)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: self.loads and self.stores, "both to begin")
            yield self
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()


def forgotten_until_killed(pool: PoolProcess, fate: str) -> bool:
    """Whether it said that all is forgotten, before it was killed."""
    before = pool.log.read_text().count("faults are on")
    (pool.place / "faults").write_text(fate)
    with Load(pool).running() as load:
        pool.signal(signal.SIGHUP)
        wait_until(
            lambda: pool.log.read_text().count("faults are on") > before or not pool.is_running,
            "the faults",
        )
        command = [sys.executable, "-m", "forebay.cli", "forget", "gone", "--json"]
        command += ["--socket", pool.socket]
        ended = subprocess.run(
            command, env=environment(), capture_output=True, timeout=2 * HANG_S, check=False
        )
        pool.kill()
    assert not load.wrong
    (pool.place / "faults").write_text("")
    return ended.returncode == 0


def is_on_disk(pool: PoolProcess) -> bool:
    files = [path.read_bytes() for path in (pool.place / "disk").iterdir()]
    return any(payload[:64] in content for payload in PAYLOADS for content in files)


@pytest.mark.long  # test_p10_forgetting.py has every step
def test_t63_killed_while_a_tenant_is_forgotten_under_load(pool: PoolProcess) -> None:
    store(pool, "kept", OTHERS)
    ends = []
    for fate in FATES:
        store(pool, "gone", PAYLOADS)
        wait_until(lambda: is_written(pool), "what is to be forgotten to be on the drive")
        is_said = forgotten_until_killed(pool, fate)
        pool.start()
        found = known(pool, "gone")
        ends.append((is_said, bool(found)))
        assert found in {0, len(PAYLOADS)}, "all of it, or nothing"
        assert not (is_said and found), "complete when it says so"
        assert bool(found) == is_on_disk(pool), "no plaintext of what is gone, in any file"
        assert known(pool, "kept") == len(OTHERS), "nobody else loses anything"
    print(dict(zip(FATES, ends, strict=True)))
    assert set(ends) == {(False, True), (False, False), (True, False)}, "before, within and after"
