"""The examples run as they stand, and the page about the client names what there is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import pool_process

from forebay.pool.client import Client, Receipt

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_store_and_load_starts_a_pool_and_hits() -> None:
    with pool_process.short_directory() as place:
        socket = str(place / "pool.sock")
        command = [sys.executable, str(ROOT / "examples" / "store_and_load.py"), socket]
        try:
            for known in (0, 8):
                said = subprocess.run(
                    command,
                    capture_output=True,
                    check=True,
                    timeout=300,
                    env=pool_process.environment(),
                ).stdout.decode()
                assert f"known before: Known(chunks={known}, ready={known})" in said
                assert "loaded 8 chunks, equal: True" in said
        finally:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                if f"--socket\0{socket}".encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)


def test_the_page_about_the_client_names_its_calls_and_outcomes() -> None:
    page = (ROOT / "docs" / "client.md").read_text()
    calls = [name for name in vars(Client) if not name.startswith("_")]
    internal = {"close", "generation", "why"}
    for name in sorted(set(calls) - internal):
        assert f"`{name}(" in page, name
    assert f"`Receipt({', '.join(Receipt.__slots__)})`" in page
