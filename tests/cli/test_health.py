"""`forebay health` against a live pool: its exit status is what a probe goes by."""

import json
import re
from pathlib import Path

import pytest
from tests import pool_process
from tests.pool_process import PoolProcess, wait_until

from forebay.cli.main import main

NOWHERE = "127.0.0.1:9"  # the port of the protocol "discard": nobody listens there


def port_of(pool: PoolProcess) -> str:
    """Where the pool answers HTTP, as its log says."""
    said: list[str] = []

    def is_said() -> bool:
        said[:] = re.findall(r"metrics at http://([\d.]+:\d+)/", pool.log.read_text())
        return bool(said)

    wait_until(is_said, "the pool to listen")
    return said[0]


def health(pool: PoolProcess, address: str, *words: str) -> int:
    return main(["health", "--socket", pool.socket, "--metrics-address", address, *words])


def test_health_is_an_exit_status_and_a_line_a_tier(capsys: pytest.CaptureFixture[str]) -> None:
    any_port = ("--metrics-address", "127.0.0.1:0")
    with (
        pool_process.short_directory() as place,
        pool_process.running_pool(place, *any_port) as pool,
    ):
        address = port_of(pool)
        assert health(pool, address) == 0
        assert set(capsys.readouterr().out.splitlines()) == {
            "socket 0: well",
            "dram 0: well",
            f"disk {place / 'disk'}: well",
        }
        assert main(["health", "--socket", pool.socket]) == 0  # the pool says where
        assert f"disk {place / 'disk'}: well" in capsys.readouterr().out
        assert pool.stats()["http"] == address
        assert health(pool, address, "--json") == 0
        assert json.loads(capsys.readouterr().out)["ok"] is True
        words = ["health", "--socket", "/run/other.sock", "--metrics-address", address]
        assert main(words) == 2
        assert "give each its own --metrics-address." in capsys.readouterr().err
        assert health(pool, NOWHERE) == 2
        assert health(pool, "none") == 2


def test_a_drive_that_fails_is_not_well(capsys: pytest.CaptureFixture[str]) -> None:
    with pool_process.short_directory() as place:
        faults = place / "faults"
        faults.write_text("write:errno=EIO\n")
        flags = ("--metrics-address", "127.0.0.1:0", "--faults-file", str(faults))
        with pool_process.running_pool(place, *flags, faulty=True) as pool:
            assert health(pool, port_of(pool)) == 1
            out = capsys.readouterr().out
            assert f"disk {place / 'disk'}: not well: " in out
            assert "dram 0: well" in out


def test_a_token_is_presented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o600)
    flags = ("--metrics-address", "127.0.0.1:0", "--metrics-token-file", str(token))
    with (
        pool_process.short_directory() as place,
        pool_process.running_pool(place, *flags, disk=False) as pool,
    ):
        address = port_of(pool)
        assert health(pool, address) == 2
        assert "answers 401" in capsys.readouterr().err
        assert health(pool, address, "--metrics-token-file", str(token)) == 0


def test_a_pool_without_http_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        pool_process.short_directory() as place,
        pool_process.running_pool(place, disk=False) as pool,
    ):
        assert main(["health", "--socket", pool.socket]) == 2
        assert "does not answer HTTP" in capsys.readouterr().err
