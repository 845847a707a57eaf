"""`bench pool --encryption`: both sides are measured, nothing is missed, nothing is left behind."""

import json
from pathlib import Path

import pytest

from forebay.bench.disk import encryption
from forebay.bench.disk.figures import PAIRS, PoolBenchPlan
from forebay.cli.bench.pool import readable_encryption
from forebay.cli.main import main
from forebay.settings import DiskSetting


def test_both_sides_are_measured(tmp_path: Path) -> None:
    plan = PoolBenchPlan((DiskSetting(str(tmp_path), 64 << 20),), 64 << 10, 0.5)
    found = encryption.run(plan, lambda _what, _done: None)
    for what in ("read", "write"):
        assert len(found[f"encrypted_{what}_ratios"]) == PAIRS
        for name in ("plain", "encrypted"):
            assert found[f"{name}_{what}_gbps"] > 0
            assert found[f"{name}_{what}_cpu_s_per_gb"] > 0
    assert found["encryption_misses"] == 0
    assert found["encryption_dropped"] >= 0  # a busy drive takes fewer than it is offered
    assert list(tmp_path.iterdir()) == []
    text = readable_encryption(plan, found)
    assert "cores to keep up" in text
    cores = found["encrypted_write_cpu_s_per_gb"] * found["plain_write_gbps"]
    assert found["encrypted_write_cores"] == round(cores, 2)
    assert json.loads(json.dumps(found)) == found
    assert "1 loads missed" in readable_encryption(plan, found | {"encryption_misses": 1})


def test_a_pool_is_not_measured_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = f"--disk={tmp_path}:1GiB"
    assert main(["bench", "pool", disk, "--encryption", "--dram", "64MiB"]) == 2
    assert "leave out --dram" in capsys.readouterr().err
