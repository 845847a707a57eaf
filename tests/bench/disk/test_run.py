"""`forebay bench pool`: figures that add up, sizes that hold, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.pool_process import wait_until

from forebay.bench.disk import figures, microbenchmarks
from forebay.bench.disk.raw import DEPTH_MAX, prepared_files
from forebay.bench.disk.tier_load import TierLoad
from forebay.cli.main import main
from forebay.record.header import record_bytes
from forebay.sys import memory, scratch
from forebay.tiers.disk import Directory, DiskTier, Options

PAYLOAD_BYTES = 64 << 10
COMMAND = [sys.executable, "-m", "forebay.cli.main", "bench", "pool"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "drive"
    path.mkdir(mode=0o700)
    return path


def test_raw_reads_and_writes_within_its_files_and_removes_them(home: Path) -> None:
    io_bytes = record_bytes(PAYLOAD_BYTES)
    with prepared_files([home], io_bytes, 32) as raw:
        assert raw.written == 32
        assert raw.read(4, 0.05) > 0
        assert raw.write(8, 0.05) > 0
        assert all(rate > 0 for rate in raw.both(4, 0.05))
        for buffer in raw.buffers:
            buffer[:] = bytes(io_bytes)
        assert raw.read_through(8, len(raw.buffers) // 2 * io_bytes) > 0
        assert [any(buffer) for buffer in raw.buffers] == [False] * 8 + [True] * 8
        assert raw.read_through(8, len(raw.buffers) // 2 * io_bytes) > 0
        assert all(any(buffer) for buffer in raw.buffers), "through all of them, in turn"
        assert (home / "raw").stat().st_size == 32 * io_bytes
    assert list(home.iterdir()) == []


def test_ours_loads_what_it_stored(home: Path) -> None:
    tier = DiskTier.open([Directory(str(home), 16 << 20)], Options())
    size = record_bytes(PAYLOAD_BYTES)
    forebay = TierLoad(
        tier, PAYLOAD_BYTES, 200, [memory.allocate(size) for _ in range(2 * DEPTH_MAX)]
    )
    forebay.fill(200)
    assert forebay.read(8, 0.05) > 0
    assert forebay.write(4, 0.05) > 0
    assert all(rate > 0 for rate in forebay.both(4, 0.05))
    assert (forebay.misses, forebay.dropped) == (0, 0)
    tier.close(60)


def test_small_figures(home: Path) -> None:
    place = [Directory(str(home), 32 << 20)]
    assert microbenchmarks.reopen(place, 2, time.monotonic() - 1, 1000) == [], "no time"
    seconds = microbenchmarks.reopen(place, 2, time.monotonic() + 600, 1000)
    assert len(seconds) == 2
    assert min(seconds) > 0
    assert 50 < microbenchmarks.index_bytes_per_record(50_000) < 1000
    assert min(microbenchmarks.keys_ms(3)) > 0


def test_a_pair_is_the_best_of_the_depths_in_one_round() -> None:
    rounds = [{1: (2.0, 1.0), 4: (1.0, 1.5)}, {1: (4.0, 4.0), 4: (1.0, 1.0)}]
    found = figures.pairs("read", rounds)
    assert (found["raw_read_gbps_spread"], found["read_gbps_spread"]) == ([2.0, 4.0], [1.5, 4.0])
    assert found["read_ratios"] == [0.75, 1.0]
    assert (found["read_ratio"], found["read_ratio_spread"]) == (0.875, [0.75, 1.0])
    assert found["read_by_depth"]["1"] == {"raw_gbps": 3.0, "gbps": 2.5}


@pytest.mark.parametrize(("gbps", "word"), [(0.5, "Too slow"), (2.5, "for one GPU"), (9.0, "Good")])
def test_the_verdict_answers_the_buyer(gbps: float, word: str) -> None:
    assert word in figures.worth(gbps)["verdict"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--disk is needed"),
        (["--disk", "{home}"], "is not DIR:SIZE"),
        (["--disk", "{home}:much"], "is not a size"),
        (["--disk", "{home}:1MiB"], "is too small"),
        (["--disk", "{home}:900TiB"], "free"),
        (["--disk", "{home}/none:1GiB"], "No such file"),
        (["--disk", "{home}/file:1GiB"], "is not a directory"),
        (["--disk", "{home}/open:1GiB"], "can be written by others"),
        (["--disk", "{home}:1GiB", "--record", "0"], "--record"),
        (["--disk", "{home}:1GiB", "--record", "x"], "--record"),
        (["--disk", "{home}:1GiB", "--seconds", "x"], "--seconds"),
        (["--disk", "{home}:1GiB", "--seconds", "nan"], "--seconds"),
        (["--disk", "{home}:1GiB", "--seconds", "1"], "--seconds"),
        (["--disk", "{home}:1GiB", "--disk", "{home}:1GiB"], "twice"),
        (["--disk", "{home}:1GiB", "--dram", "x"], "--dram"),
        (["--disk", "{home}:1GiB", "--dram", "64MiB"], "give it at least 128 MiB"),
        (["--disk", "{home}:1GiB", "--dram", "1GiB"], "give it at most"),
        (
            ["--dsik", "{home}:1GiB"],
            "--dsik is not a flag of forebay bench pool (did you mean --disk?)",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    (home / "file").touch()
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    given = [argument.format(home=home) for argument in arguments]
    assert main(["bench", "pool", *given]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("forebay: ")
    assert err.count("\n") == 1
    assert word in err
    assert {path.name for path in home.iterdir()} == {"file", "open"}


def test_scratch_is_private_and_goes_even_if_interrupted(home: Path) -> None:
    def interrupted() -> None:
        with scratch.scratch(str(home)) as path:
            assert path.stat().st_mode & 0o777 == 0o700
            (path / "file").touch()
            assert scratch.leftovers(str(home)) == [str(path)]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(home.iterdir()) == []


@pytest.mark.long
def test_two_directories_carry_half_each_within_their_size(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (home / "mine").write_text("mine")
    size = 256 << 20
    disks = ["--disk", f"{home}:{size}", "--disk", f"{other}:{size}"]
    command = [*COMMAND, *disks, "--record", "1MiB", "--seconds", "6", "--json"]
    most = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        while running.poll() is None:
            most = max(most, used_bytes(home), used_bytes(other))
            time.sleep(0.05)
        assert running.stdout is not None
        found = json.loads(running.stdout.read())
    assert running.returncode == 0
    assert size // 2 < most <= size
    assert [path.name for path in home.iterdir()] == ["mine"]
    assert list(other.iterdir()) == []
    assert all(0.45 <= each["share"] <= 0.55 for each in found["directories"])
    assert found["misses"] == found["dropped"] == 0
    for name in ("read", "write"):
        assert found[f"{name}_gbps"] > 0
        assert found[f"raw_{name}_gbps"] > 0
        assert len(found[f"{name}_ratios"]) >= 5


def used_bytes(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "status", "after_s"),
    [(signal.SIGINT, 130, 1.5), (signal.SIGTERM, 143, 0.4), (signal.SIGHUP, 143, 0.0)],
)
def test_an_interrupted_run_leaves_nothing_behind(
    home: Path, number: int, status: int, after_s: float
) -> None:
    command = [*COMMAND, "--disk", f"{home}:512MiB", "--seconds", "30"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: list(home.iterdir()), "its files")
        time.sleep(after_s)
        running.send_signal(number)
        _, err = running.communicate(timeout=300)
    assert running.returncode == status
    assert "Traceback" not in err
    assert list(home.iterdir()) == []
