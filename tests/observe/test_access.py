"""T42 over HTTP: this host alone, or a token; and no page of somebody else's may read it."""

import base64
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import pool_process
from tests.pool_process import HANG_S, PoolProcess, environment

from forebay.errors import SettingsError, StartupError
from forebay.observe.access import Access
from forebay.settings import Settings, parse_address

TOKEN = "correct-horse-battery-staple"
TCP_LISTEN = "0A"  # in /proc/net/tcp


@pytest.fixture
def place() -> Iterator[Path]:
    with pool_process.short_directory() as path:
        yield path


def status_of(url: str, **headers: str) -> int:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_t42_a_public_address_without_a_token_is_refused(place: Path) -> None:
    pool = PoolProcess(place, "--metrics-address", "0.0.0.0:0", disk=False)
    ended = subprocess.run(
        pool.command,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env=environment(),
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "forebay: metrics_address 0.0.0.0:0 can be reached from other hosts and needs a token;"
        " name a file that holds one with --metrics-token-file.\n"
    )


def test_t42_with_a_token_nothing_is_said_without_it(place: Path) -> None:
    (place / "token").write_text(TOKEN + "\n")
    flags = ("--metrics-address", "0.0.0.0:0", "--metrics-token-file", str(place / "token"))
    with pool_process.running_pool(place, *flags, disk=False) as pool:
        url = pool.url()
        basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
        wrong = base64.b64encode(f"{TOKEN}:x".encode()).decode()
        for path in (
            "/metrics",
            "/healthz",
            "/readyz",
            "/stats.json",
            "/requests.json",
            "/nowhere",
        ):
            assert status_of(url + path) == 401
            for word in ("Bearer nonsense", f"Bearer {TOKEN}x", f"Basic {wrong}", "Basic ?", TOKEN):
                assert status_of(url + path, Authorization=word) == 401, word
        assert status_of(url + "/metrics", Authorization=f"Bearer {TOKEN}") == 200
        assert status_of(url + "/metrics", Authorization=f"Basic {basic}") == 200
        assert TOKEN not in pool.log.read_text()


def test_t42_the_default_address_is_this_hosts_own(place: Path) -> None:
    """And there the Host header must be too: another name may point here (DNS rebinding)."""
    assert parse_address(Settings().metrics_address) == ("127.0.0.1", 7411)
    with pool_process.running_pool(place, "--metrics-address", "127.0.0.1:0", disk=False) as pool:
        url = pool.url()
        links = [pool_process._target(path) for path in Path(f"/proc/{pool.pid}/fd").iterdir()]
        ours = {link[8:-1] for link in links if link.startswith("socket:")}
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        ]
        local = [row[1] for row in rows if row[9] in ours and row[3] == TCP_LISTEN]
        assert [address.partition(":")[0] for address in local] == ["0100007F"]
        for host in ("localhost", "127.0.0.1:80", "[::1]:80", "LOCALHOST:7411"):
            assert status_of(url + "/readyz", Host=host) == 200, host
        for host in (
            "evil.example",
            "localhost.evil.example:7411",
            "127.0.0.1.nip.io",
            "",
            "[::2]",
        ):
            assert status_of(url + "/readyz", Host=host) == 421, host


def test_a_port_that_is_taken_is_a_line_in_the_log(place: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pool_process.running_pool(place, "--metrics-address", taken, disk=False) as pool:
            assert pool.number("uptime_seconds") >= 0, "it serves"
            assert f"no metrics at {taken} (Address already in use)" in pool.log.read_text()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"short", "needs one word of 16 or more"),
        (b"two words of a token", "needs one word of 16 or more"),
        ("ein-längeres-Passwort".encode(), "needs one word of 16 or more"),
        (b"x" * 5000, "is larger than"),
        (None, "cannot be read"),
    ],
)
def test_a_token_that_protects_nothing_is_refused(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartupError, match=why):
        Access.of(Settings(metrics_token_file=str(path)))


@pytest.mark.parametrize(
    "text", ["7411", "localhost", "example.org:80", "1.2.3.4:", ":80", "[::1]"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not ADDRESS:PORT"):
        parse_address(text)


def test_addresses() -> None:
    assert parse_address("localhost:80") == ("127.0.0.1", 80)
    assert parse_address("[::1]:0") == ("::1", 0)
    assert parse_address("none") is parse_address("") is None
    assert Access.of(Settings(metrics_address="none")) is None
    access = Access.of(Settings(metrics_address="[::1]:0"))
    assert access is not None
    assert not access.needs_token
