"""The version has one place; what repeats it agrees, and nothing that is stored depends on it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import yaml
from tests.pool_process import (
    HANG_S,
    PatientClient,
    PoolProcess,
    environment,
    exact,
    is_written,
    made,
    short_directory,
    wait_until,
)
from tests.test_docs import tool

from forebay import __version__

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "forebay"
HELM = ROOT / "deploy" / "helm" / "forebay"
STACK = ROOT / "deploy" / "platforms" / "production-stack.yaml"
IMAGE = re.compile(r"\b(forebay-pool|forebay-serve|[\w-]+-forebay):([\w.-]+)")


def test_every_image_has_this_version() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*")]
    named = [
        (page.name, *found)
        for page in pages
        if page.is_file()
        for found in IMAGE.findall(page.read_text())
    ]
    assert {image for _, image, _ in named} >= {"forebay-pool", "forebay-serve"}
    assert [each for each in named if each[-1] != __version__] == []
    (stack,) = yaml.safe_load(STACK.read_text())["servingEngineSpec"]["modelSpec"]
    assert stack["tag"] == __version__


def test_the_chart_has_this_version() -> None:
    chart = yaml.safe_load((HELM / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert chart["version"] == __version__.replace(".dev", "-dev"), "as Helm writes versions"


def test_the_changelog_begins_with_this_version() -> None:
    first = re.findall(r"^## (\S+?)(,.*)?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    release, development, _ = __version__.partition(".dev")
    assert first == (release, ", not released yet" if development else "")


def test_the_readme_says_which_version_this_is() -> None:
    assert f"This is version {__version__}:" in (ROOT / "README.md").read_text()


def test_a_pool_of_another_version_left_what_this_one_finds() -> None:
    chunks, chain = made("any")
    with short_directory() as place:
        shutil.copytree(SOURCE, place / "other" / "forebay")
        init = place / "other" / "forebay" / "__init__.py"
        init.write_text(init.read_text().replace(f'"{__version__}"', '"9.8.7"'))
        pool = PoolProcess(place)
        variables = {**environment(), "PYTHONPATH": str(place / "other")}
        with pool.log.open("ab") as log:
            pool.process = subprocess.Popen(
                pool.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables
            )
        try:
            with PatientClient(pool.socket) as client:
                wait_until(client.join, "the other version")
                assert pool.stats()["forebay"] == "9.8.7"
                client.store(chain, [chunk.payload for chunk in chunks])
                wait_until(lambda: is_written(pool), "the drive")
            pool.stop()
            pool.start()
            assert pool.stats()["forebay"] == __version__
            with PatientClient(pool.socket) as client:
                found = client.lookup(chain)
                assert getattr(found, "chunks", 0) == len(chunks)
                with client.load(chain, 0, HANG_S) as loaded:
                    assert exact(loaded, chunks)
        finally:
            if pool.process is not None and pool.process.poll() is None:
                pool.kill()


def test_the_lines_that_the_readme_prints_are_those_that_make_wheel_tries() -> None:
    """The tool stops at any line that it does not know; here that is noticed without a wheel."""
    found = tool("check_wheel").printed()
    assert found.install == ["pip", "install", ".[vllm]"]
    assert json.loads(found.transfer)["kv_connector"] == "ForebayConnector"
    small = " ".join(tool("check_wheel").here(found.forebay, Path("/place")))
    assert "--dram 64MiB --disk /place/disk:64MiB" in small
