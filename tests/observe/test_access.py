"""T42 over HTTP: this host alone, or a token; and no page of somebody else's may read it."""

import base64
import os
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import pool_process
from tests.pool_process import HANG_S, PoolProcess, environment

from forebay.barrier import Barrier
from forebay.errors import SettingsError, StartupError
from forebay.observe.access import Access
from forebay.observe.http import HttpServer
from forebay.observe.observer import Observer
from forebay.settings import Settings, parse_address
from forebay.sys import sockets

TOKEN = "correct-horse-battery-staple"
TCP_LISTEN = "0A"  # in /proc/net/tcp


@pytest.fixture
def place() -> Iterator[Path]:
    with pool_process.short_directory() as path:
        yield path


def write_token(path: Path, content: bytes, mode: int = 0o600) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
    path.chmod(mode)


def status_of(url: str, **headers: str) -> int:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_t42_t65_a_public_address_without_a_token_is_refused(place: Path) -> None:
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


def test_t42_t65_with_a_token_nothing_is_said_without_it(place: Path) -> None:
    write_token(place / "token", TOKEN.encode() + b"\n")
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
        (b"x" * 5000, r"is larger than 4,096 bytes"),
        (None, "cannot be read"),
    ],
)
def test_a_token_that_protects_nothing_is_refused(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        write_token(path, content)
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


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o644])
def test_a_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    write_token(path, TOKEN.encode(), mode)
    settings = Settings(metrics_token_file=str(path))
    if os.getuid() or mode & ~0o640:  # a group of root's may have been given it, as in a cluster
        with pytest.raises(StartupError, match="can be read or changed by other users; run: chmod"):
            Access.of(settings)
    path.chmod(0o400)
    assert Access.of(settings) is not None


@pytest.mark.parametrize(
    ("shown", "is_operator", "status"),
    [
        ("operators", True, 200),
        ("operators", False, 403),
        ("all", False, 200),
        ("none", True, 403),
    ],
)
def test_requests_are_shown_to_operators_of_this_host(
    place: Path, *, shown: str, is_operator: bool, status: int
) -> None:
    """Known by the user that the kernel has for the other end of the connection."""
    users = {os.getuid() + (not is_operator)}
    with pool_process.serving(place) as service:
        access = Access("127.0.0.1", 0, None, shown, users)
        server = HttpServer(access, Observer(service, access).answer, Barrier())
        try:
            assert status_of(server.url + "/requests.json") == status
            assert status_of(server.url + "/stats.json") == 200, "there is no request in it"
        finally:
            server.close(HANG_S)


def test_who_has_the_token_sees_requests(place: Path) -> None:
    with pool_process.serving(place) as service:
        access = Access("127.0.0.1", 0, TOKEN.encode(), "operators", ())
        server = HttpServer(access, Observer(service, access).answer, Barrier())
        try:
            url = server.url + "/requests.json"
            assert status_of(url, Authorization=f"Bearer {TOKEN}") == 200
            assert status_of(url) == 401
        finally:
            server.close(HANG_S)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_user_at_the_other_end(address: str) -> None:
    with sockets.listen_tcp(address, 0, 1) as listener:
        with socket.create_connection((address, listener.getsockname()[1]), HANG_S):
            link, _ = listener.accept()
            assert sockets.tcp_peer_uid(link) == os.getuid()
        link.settimeout(HANG_S)
        assert link.recv(1) == b"", "it has closed its end: nobody's any more"
        assert sockets.tcp_peer_uid(link) is None
        link.close()
