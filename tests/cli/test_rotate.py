"""`forebay rotate`: keys made, put first, and taken up by a running pool."""

from pathlib import Path

import pytest
from tests.encryption_harness import NAMES_WORD, NEW_WORD, OLD_WORD
from tests.pool_process import PatientClient, PoolProcess, running_pool, wait_until

from forebay.cli.main import main
from forebay.pool.client import Chain, Loaded
from forebay.record.header import payload_hash
from forebay.record.keyring import MasterKeys
from forebay.tiers.contract import MissReason

PAYLOAD = bytes(range(256)) * 80
CHAIN = Chain(b"n" * 32, [bytes([number]) * 32 for number in range(1, 9)])


def test_keys_are_made_and_put_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys"
    assert main(["rotate", "--new-key", str(path)]) == 0
    before = MasterKeys.parse(path.read_text())
    assert "is the current one of 1." in capsys.readouterr().out
    assert path.stat().st_mode & 0o777 == 0o600
    assert main(["rotate", "--new-key", str(path)]) == 0
    after = MasterKeys.parse(path.read_text())
    assert after.names == before.names
    assert after.masters[1:] == before.masters
    assert after.masters[0].id[:4].hex() in capsys.readouterr().out


def test_the_seventeenth_key_and_a_broken_file_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    for _ in range(16):
        assert main(["rotate", "--new-key", str(path)]) == 0
    full = path.read_text()
    assert main(["rotate", "--new-key", str(path)]) == 2
    assert "has 16 keys already; remove the last ones." in capsys.readouterr().err
    assert path.read_text() == full
    path.write_text("key=ab")
    assert main(["rotate", "--new-key", str(path)]) == 2
    assert "key= is not followed by 64 hex digits." in capsys.readouterr().err
    assert path.read_text() == "key=ab"


def hits(pool: PoolProcess) -> int:
    with PatientClient(pool.socket) as client, client.load(CHAIN) as loaded:
        found = loaded.chunks if isinstance(loaded, Loaded) else []
        assert all(bytes(chunk[: len(PAYLOAD)]) == PAYLOAD for chunk in found)
        return len(found)


def store(pool: PoolProcess, first: int, count: int) -> None:
    """Store some chunks, and wait until they are on the drive."""
    before = pool.number("operations", tier="disk", direction="store", outcome="ok")
    with PatientClient(pool.socket) as client:
        receipt = client.store(CHAIN, [memoryview(PAYLOAD)] * count, first)
        assert receipt.stored == count
    wait_until(
        lambda: (
            pool.number("operations", tier="disk", direction="store", outcome="ok")
            >= before + count
        ),
        "everything to be on the drive",
    )


def test_t45_a_pool_rotates_without_a_flush_and_its_drive_tells_nothing(
    short_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{NAMES_WORD}\n{OLD_WORD}\n")
    keys.chmod(0o600)
    with running_pool(short_path, "--encryption", f"file:{keys}") as pool:
        store(pool, 0, 4)
        keys.write_text("nonsense")
        assert main(["rotate", "--socket", pool.socket]) == 2
        assert "a word is neither names=HEX nor key=HEX." in capsys.readouterr().err
        keys.write_text(f"{NAMES_WORD}\n{NEW_WORD}\n{OLD_WORD}\n")
        assert main(["rotate", "--socket", pool.socket]) == 0
        assert "new records are encrypted under key" in capsys.readouterr().out
        store(pool, 4, 4)
        pool.kill()
        medium = b"".join(path.read_bytes() for path in (short_path / "disk").iterdir())
        for secret in (PAYLOAD[:64], payload_hash(PAYLOAD), CHAIN.keys[0], CHAIN.namespace):
            assert secret not in medium
        keys.write_text(f"{NAMES_WORD}\n{NEW_WORD}\n")  # the old key is not needed any more
        pool.start()
        assert hits(pool) == 8
        assert not pool.number("operations", tier="disk", outcome=MissReason.NO_KEY)


def test_a_pool_that_does_not_encrypt_says_so(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_pool(short_path, disk=False) as pool:
        assert main(["rotate", "--socket", pool.socket]) == 2
    assert "this pool does not encrypt; set encryption." in capsys.readouterr().err


def test_keys_of_the_environment_are_read_once(
    short_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_KEYS", f"{NAMES_WORD} {OLD_WORD}")
    with running_pool(short_path, "--encryption", "env:KV_KEYS") as pool:
        assert main(["rotate", "--socket", pool.socket]) == 2
    assert "are read once; restart the pool with the new ones." in capsys.readouterr().err
