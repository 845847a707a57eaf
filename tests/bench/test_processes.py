"""An engine of a measurement: a real process, quoted where it fails, gone with all it started."""

import socket
import sys
from pathlib import Path

import pytest
from tests.pool_process import wait_until

from forebay.bench import processes
from forebay.bench.processes import ServerProcess
from forebay.errors import StartupError


def test_an_engine_that_cannot_begin_is_quoted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no room'); raise SystemExit(3)"]
    begun = ServerProcess.start(command, {}, processes.free_port(), tmp_path / "log")
    with pytest.raises(StartupError, match="it said last:\nno room"):
        begun.wait()
    begun.end()


def test_an_engine_is_gone_afterwards_with_its_children(tmp_path: Path) -> None:
    child = "import time; time.sleep(600)"
    text = (
        "import http.server, subprocess, sys\n"
        f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True)\n"
        "class Up(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Up).serve_forever()\n"
    )
    port, log = processes.free_port(), tmp_path / "log"
    begun = ServerProcess.start([sys.executable, "-c", text, str(port)], {}, port, log)
    begun.wait()
    pid = int(log.read_text().split()[0])
    assert Path(f"/proc/{pid}").exists()
    begun.end()
    wait_until(lambda: has_ended(pid), "its child to end")


def has_ended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended as we read
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_the_kernel_gives_a_free_port_to_nobody_else() -> None:
    kernels = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    first, last = map(int, kernels)
    for _ in range(20):
        port = processes.free_port()
        assert not first <= port <= last
        with socket.socket() as listener:
            listener.bind((processes.HOST, port))
