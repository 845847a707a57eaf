"""A stub server as a process of its own, for as long as a test needs it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STUB = Path(__file__).parent / "stub_server.py"


class StubProcess:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def told(self) -> dict[str, Any]:
        """What the stub kept: times of what it sent, and bodies of what it was asked."""
        with urllib.request.urlopen(f"{self.url}/sent", timeout=60) as answer:
            found = json.load(answer)
        assert isinstance(found, dict)
        return found


@contextmanager
def stub(*options: str) -> Iterator[StubProcess]:
    command = [sys.executable, str(STUB), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield StubProcess(int(process.stdout.readline()))
        finally:
            process.kill()
