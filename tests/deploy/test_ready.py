"""The health check of both images, against a real pool: 200 from its HTTP port, nothing else."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests import pool_process
from tests.deploy.manifests import DEPLOY
from tests.pool_process import HANG_S, PoolProcess

READY = DEPLOY / "ready.py"
TOKEN = "0123456789abcdef"


@pytest.fixture
def place() -> Iterator[Path]:
    with pool_process.short_directory() as path:
        yield path


def ready(*words: str, **variables: str) -> tuple[int, str]:
    environment: Mapping[str, str] = {"PATH": os.environ["PATH"], **variables}
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(READY), *words],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env=environment,
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stderr.strip()


def test_a_pool_is_ready_while_it_answers(place: Path) -> None:
    pool = PoolProcess(place, "--metrics-address", "127.0.0.1:0", disk=False).start()
    address = pool.url().removeprefix("http://")
    assert ready(FOREBAY_METRICS_ADDRESS=address) == (0, "")
    port = address.rpartition(":")[2]
    assert ready(port, "/readyz") == (0, "")
    status, why = ready(port, "/nowhere")
    assert (status, "404" in why) == (1, True)
    pool.stop()
    status, why = ready(FOREBAY_METRICS_ADDRESS=address)
    assert (status, "refused" in why) == (1, True)


def test_it_presents_the_token_of_a_public_address(place: Path) -> None:
    token = place / "token"
    token.touch(mode=0o600)
    token.write_text(f"{TOKEN}\n")
    flags = ("--metrics-address", "0.0.0.0:0", "--metrics-token-file", str(token))
    pool = PoolProcess(place, *flags, disk=False).start()
    anywhere = "0.0.0.0:" + pool.url().rpartition(":")[2]
    variables = {"FOREBAY_METRICS_ADDRESS": anywhere, "FOREBAY_METRICS_TOKEN_FILE": str(token)}
    assert ready(**variables) == (0, "")
    token.write_text(TOKEN[::-1])
    status, why = ready(**variables)
    assert (status, "401" in why) == (1, True)
    token.unlink()
    assert ready(**variables)[0] == 1
    pool.stop()


def test_what_is_no_pool_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert ready(str(port), "/readyz")[0] == 1
    assert ready(FOREBAY_METRICS_ADDRESS="none")[0] == 1
