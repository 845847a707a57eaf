"""Tenants of a running pool from the command line: hashed, listed, changed and forgotten."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pool_process import PatientClient, PoolProcess, wait_until
from tests.terminal import Terminal

from forebay.cli.main import main
from forebay.identity.keys import ChainRoot, KeyChain
from forebay.pool.client import Chain, Known
from forebay.testing import samples

SALTS = {"search": "sky-high", "mail": "low-tide"}
PAYLOADS = [bytes([number]) * 40_000 for number in range(1, 7)]


@pytest.fixture
def key_file(place: Path) -> Path:
    path = place / "tenants.key"
    path.write_bytes(b"0123456789abcdef0123456789abcdef\n")
    return path


def hashed(
    salt: str, key_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO(salt + "\n"))
    assert main(["hash-salt", "--tenant-key-file", str(key_file)]) == 0
    return capsys.readouterr().out.strip()


@pytest.fixture
def settings(
    place: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    lines = [f'tenant_key_file = "{key_file}"']
    for name, salt in SALTS.items():
        digits = hashed(salt, key_file, monkeypatch, capsys)
        assert len(digits) == 32
        lines += ["[[tenant]]", f'name = "{name}"', f'salts = ["{digits}"]', 'dram_floor = "1MiB"']
    path = place / "pool.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def pool(place: Path, settings: Path) -> Iterator[PoolProcess]:
    pool = PoolProcess(place, "--config", str(settings)).start()
    yield pool
    if pool.process is not None and pool.process.poll() is None:
        pool.stop()


def chain_of(salt: str) -> Chain:
    keys = KeyChain(ChainRoot(samples.NAMESPACE, 1, salt=salt)).extend(range(len(PAYLOADS)))
    return Chain(samples.NAMESPACE, keys, salt=salt)


def store(pool: PoolProcess, salt: str) -> None:
    with PatientClient(pool.socket) as client:
        assert client.store(chain_of(salt), PAYLOADS, timeout_s=60).stored == len(PAYLOADS)


def known(pool: PoolProcess, salt: str) -> int:
    with PatientClient(pool.socket) as client:
        found = client.lookup(chain_of(salt), timeout_s=60)
    assert isinstance(found, Known)
    return found.chunks


def is_on_disk(pool: PoolProcess) -> bool:
    files = [path.read_bytes() for path in (pool.place / "disk").iterdir()]
    return any(payload[:64] in content for payload in PAYLOADS for content in files)


def listed(pool: PoolProcess) -> dict[str, dict[str, dict[str, int]]]:
    return {row["tenant"]: row for row in pool.stats()["tenants"]}


def test_t63_salts_become_tenants_that_are_listed_changed_and_forgotten(
    pool: PoolProcess, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    socket = ["--socket", pool.socket]
    store(pool, SALTS["search"])
    assert known(pool, SALTS["search"]) == len(PAYLOADS)
    rows = listed(pool)
    assert rows["search"]["dram"]["used_bytes"] > 0 == rows["mail"]["dram"]["used_bytes"]
    assert rows["search"]["dram"]["floor_bytes"] == 1 << 20
    assert main(["stats", *socket]) == 0
    assert "search" in capsys.readouterr().out
    wait_until(lambda: listed(pool)["search"]["disk"]["used_bytes"] > 0, "write-behind")
    pool.stop()
    pool.start()
    assert is_on_disk(pool)
    assert known(pool, SALTS["search"]) == len(PAYLOADS), "the same id after a restart"

    assert main(["forget", "search", "--dry-run", *socket]) == 0
    assert "of disk" in capsys.readouterr().out
    assert main(["forget", "search", "--json", "--scrub", *socket]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["forgotten"]
    assert told["used_bytes"]["disk"] > 0
    assert f"{len(PAYLOADS)} records" in told["said"]
    assert known(pool, SALTS["search"]) == 0
    assert not is_on_disk(pool)

    settings.write_text(settings.read_text().replace('"1MiB"', '"2MiB"'))
    assert main(["set", f"tenants={settings}", *socket]) == 0
    assert listed(pool)["mail"]["dram"]["floor_bytes"] == 2 << 20
    pool.kill()
    pool.start()
    assert known(pool, SALTS["search"]) == 0, "also after a kill"
    store(pool, SALTS["search"])
    assert known(pool, SALTS["search"]) == len(PAYLOADS)


def test_what_is_wrong_is_said_in_a_sentence(
    pool: PoolProcess, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    socket = ["--socket", pool.socket]
    assert main(["forget", "nobody", "--yes", *socket]) == 2
    assert "knows no tenant 'nobody'" in capsys.readouterr().err
    assert main(["forget", "no/name", *socket]) == 2
    assert "a tenant's name is" in capsys.readouterr().err
    (place / "plain.toml").write_text('[[tenant]]\nname = "a"\nsalts = ["plain salt"]\n')
    assert main(["set", f"tenants={place / 'plain.toml'}", *socket]) == 2
    said = capsys.readouterr().err
    assert "forebay hash-salt" in said
    assert "plain salt" not in said, "what may be a salt is not repeated"
    (place / "short.key").write_text("short")
    assert main(["hash-salt", "--tenant-key-file", str(place / "short.key")]) == 2
    assert "openssl rand" in capsys.readouterr().err


def test_forgetting_asks_on_a_terminal(pool: PoolProcess) -> None:
    store(pool, SALTS["mail"])
    command = [sys.executable, "-m", "forebay.cli", "forget", "mail", "--socket", pool.socket]
    with Terminal(*command, place=pool.place) as terminal:
        terminal.wait_for("To be forgotten: tenant mail", "Forget this? [y/N]")
        terminal.type("n")
        terminal.wait_for("nothing was forgotten.", "ended 1")
    assert known(pool, SALTS["mail"]) == len(PAYLOADS)
