"""`forebay bench pool --dram`: a real pool is started, measured, and gone at the end."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.pool_process import wait_until

from forebay.bench.disk.figures import latency
from forebay.bench.pool.background_client import running_beside
from forebay.bench.pool.stored_chains import StoredChains
from forebay.bench.processes import running_pool
from forebay.metrics.reading import count
from forebay.pool.client import Client
from forebay.settings import DiskSetting

COMMAND = [sys.executable, "-m", "forebay.cli.main", "bench", "pool", "--record", "64KiB"]
SIZES = ["--dram", "8MiB", "--seconds", "12"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "drive"
    path.mkdir(mode=0o700)
    return path


def test_what_is_stored_beyond_dram_is_found_and_the_pool_ends(home: Path) -> None:
    disks = [DiskSetting(str(home), 64 << 20)]
    with running_pool(4 << 20, disks) as pool, pool.client() as client:
        stock = StoredChains(client, 64 << 10)
        stock.fill(16 << 20, time.monotonic() + 600)
        stock.find()
        assert (stock.found, stock.missing, stock.refused) == (256, 0, 0)
        pid, socket = pool.pid, Path(pool.socket)
        assert pool.cpu_s() > 0
    assert not socket.parent.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_neighbour_stores_at_its_rate_until_told(home: Path) -> None:
    disks = [DiskSetting(str(home), 64 << 20)]
    with running_pool(4 << 20, disks) as pool, pool.client() as client:
        with running_beside(pool.socket, 4096, 8, 200.0) as report:
            wait_until(lambda: stored_chunks(client), "it to store")
        assert 0 < report["stored"] <= 201 * report["seconds"] + 8
        assert report["refused"] == 0


def stored_chunks(client: Client) -> int:
    stats = client.stats(60.0)
    assert isinstance(stats, dict)
    return count(stats, "operations", tier="dram", direction="store")


def test_latency_is_the_median_of_medians_and_the_p99_of_all() -> None:
    found = latency("x", [[0.001] * 99 + [0.5], [0.002] * 100, [0.003] * 100])
    assert (found["x_p50_ms"], found["x_p50_ms_spread"]) == (2.0, [1.0, 3.0])
    assert (found["x_p99_ms"], found["x_longest_ms"], found["x_calls"]) == (3.0, 500.0, 300)


@pytest.mark.long
def test_a_run_has_every_figure_and_leaves_nothing(home: Path) -> None:
    command = [*COMMAND, "--disk", f"{home}:128MiB", *SIZES, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=True)
    found = json.loads(ended.stdout)
    assert found["everything_found"] is True
    assert found["stored_records"] == found["found_records"] > 128, "more than DRAM holds"
    assert found["refused_records"] == found["nvme_to_slab_misses"] == 0
    for name in ("lookup_500_p50_ms", "lookup_500_beside_commits_p99_ms", "commits_per_s"):
        assert found[name] > 0
    assert len(found["nvme_to_slab_ratios"]) >= 5
    assert list(home.iterdir()) == []
    assert mentioning(str(home)) == []


@pytest.mark.long
@pytest.mark.parametrize("after_s", [0.1, 2.0])
def test_an_interrupted_run_leaves_no_process(home: Path, after_s: float) -> None:
    command = [*COMMAND, "--disk", f"{home}:128MiB", *SIZES]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        wait_until(
            lambda: any("--socket" in line for line in mentioning(str(home))), "its pool to start"
        )
        time.sleep(after_s)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=300)
    assert running.returncode == 130
    assert "Traceback" not in err
    assert list(home.iterdir()) == []
    assert mentioning(str(home)) == []


def mentioning(text: str) -> list[str]:
    """Command lines of processes that name this."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            lines.append(line)
    return lines
