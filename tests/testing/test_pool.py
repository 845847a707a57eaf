"""The faulty pool: the same flags as the product's, and rules besides."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import pool_process
from tests.pool_process import PatientClient, exact, made

from forebay.cli.main import main as product
from forebay.pool.client import Known, Receipt
from forebay.testing.__main__ import main


@pytest.fixture
def place() -> Iterator[Path]:
    with pool_process.short_directory() as path:
        yield path


@pytest.mark.parametrize(
    "words",
    [
        ("--fault", "read:nonsense"),
        ("--faults-file", "/nowhere/at/all"),
        ("--linger", "long"),
        ("--colour",),
    ],
    ids=" ".join,
)
def test_bad_rules_are_one_sentence(
    words: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pool", "--dram", "16MiB", "--socket", str(place / "s"), *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("forebay.testing: ")
    assert said.count("\n") == 1


def test_the_product_has_no_such_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert product(["pool", "--fault", "read:errno=EIO"]) == 2
    assert "--fault" in capsys.readouterr().err


@pytest.mark.slow
def test_t24_faults_begin_with_the_pool_and_are_switched_while_it_runs(place: Path) -> None:
    (place / "faults").write_text("write:latency=20ms\n")
    flags = ("--fault", "read:latency=10ms", "--faults-file", str(place / "faults"))
    chunks, chain = made("a")
    pool = pool_process.PoolProcess(place, *flags, faulty=True).start()
    try:
        with PatientClient(pool.socket) as client:
            receipt = client.store(chain, [chunk.payload for chunk in chunks])
            assert receipt == Receipt(stored=4)
            pool_process.wait_until(lambda: pool.number("chunks", tier="disk") == 4, "writing")
        pool.stop()
        pool.start()
        (place / "faults").write_text("read:latency=60s\n")
        pool.signal(signal.SIGHUP)
        pool_process.wait_until(lambda: "1 faults are on" in pool.log.read_text(), "the fault")
        with PatientClient(pool.socket) as client:
            with client.load(chain, timeout_s=0.5) as loaded:
                assert not exact(loaded, chunks)  # a miss in time, though the disk hangs
            (place / "faults").write_text("nonsense\n")
            pool.signal(signal.SIGHUP)  # says so, and changes nothing
            pool_process.wait_until(lambda: "stay as they are" in pool.log.read_text(), "the log")
            (place / "faults").write_text("")
            pool.signal(signal.SIGHUP)
            pool_process.wait_until(lambda: client.lookup(chain) == Known(4, 4), "the chunks")
            with client.load(chain) as loaded:
                assert exact(loaded, chunks)
    finally:
        pool.kill()
