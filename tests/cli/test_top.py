"""`forebay top` and `stats` against a live pool: on a real terminal, resized, piped, uncoloured."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import pool_process
from tests.pool_process import HANG_S, PatientClient, PoolProcess, made
from tests.terminal import Terminal

CODES = re.compile(r"\x1b\[[0-9;]*m")
COLOURS = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7])(?:;[0-9;]*)?m")


@pytest.fixture
def pool() -> Iterator[PoolProcess]:
    """A pool in a process of its own, with something in it."""
    with pool_process.short_directory() as place, pool_process.running_pool(place) as running:
        store(running, "first")
        yield running


def store(pool: PoolProcess, label: str) -> None:
    chunks, chain = made(label)
    with PatientClient(pool.socket) as client:
        assert client.store(chain, [chunk.payload for chunk in chunks]).stored == len(chunks)
        with client.load(chain) as loaded:
            assert pool_process.exact(loaded, chunks)


def command(pool: PoolProcess, *words: str) -> list[str]:
    return [sys.executable, "-m", "forebay.cli", *words, "--socket", pool.socket]


def run(pool: PoolProcess, *words: str, **variables: str) -> str:
    ended = subprocess.run(
        command(pool, *words),
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
        env={**pool_process.environment(), **variables},
    )
    assert ended.stderr == ""
    return ended.stdout


def is_frame(seen: str, lines: int, columns: int) -> bool:
    """Whether a terminal of this size has the first and the last line of a frame of this size."""
    rows = seen.splitlines()
    is_whole = rows[0].startswith("pool at ") and rows[-1].startswith("q quit")
    return is_whole and len(rows) == lines and max(map(len, rows)) <= columns and "dram" in seen


def test_top_lives_in_a_terminal_of_any_size(pool: PoolProcess, tmp_path: Path) -> None:
    words = command(pool, "top", "--interval", "0.2")
    with Terminal(*words, place=tmp_path, lines=40, columns=130) as terminal:
        first = (f"pool at {pool.socket}", "Runs out first", "Namespaces by size", "q quit")
        terminal.wait_for(*first, "█", "4 chunks")
        store(pool, "second")  # what happens meanwhile is seen
        terminal.wait_for("8 chunks")
        terminal.resize(12, 60)
        terminal.wait_until(lambda seen: is_frame(seen, 12, 60), "a small frame")
        terminal.resize(40, 130)
        terminal.wait_for("Namespaces by size", "Engines")
        terminal.press("s")
        terminal.wait_for("Namespaces by chunks")
        terminal.press("p")
        terminal.wait_for("paused")
        terminal.press("p")
        terminal.wait_until(lambda seen: "paused" not in seen, "it to go on")
        terminal.press("+")
        terminal.wait_for("every 0.1 s")
        terminal.press("q")
        after = terminal.wait_for("ended 0")
        assert "Runs out first" not in after  # the screen is as it was


def test_top_outlives_its_pool_and_ends_with_an_interrupt(
    pool: PoolProcess, tmp_path: Path
) -> None:
    words = command(pool, "top", "--interval", "0.2")
    with Terminal(*words, place=tmp_path, lines=30, columns=160) as terminal:
        terminal.wait_for("hit rate")
        pool.kill()
        terminal.wait_for("no pool answers at")
        pool.start()
        terminal.wait_until(lambda seen: "no pool answers" not in seen, "the next pool to be seen")
        terminal.press("C-c")
        terminal.wait_for("ended 130")


@pytest.mark.parametrize(
    ("variables", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False)],
    ids=["colour", "NO_COLOR"],
)
def test_colour_is_used_unless_it_is_not_wanted(
    pool: PoolProcess, tmp_path: Path, variables: dict[str, str], is_coloured: bool
) -> None:
    words = command(pool, "top", "--interval", "0.2")
    with Terminal(*words, place=tmp_path, environment=variables) as terminal:
        terminal.wait_for("Runs out first", "dram", "q quit")
        assert bool(COLOURS.search(terminal.screen(colours=True))) is is_coloured
        terminal.press("q")
        terminal.wait_for("ended 0")


def test_a_dumb_terminal_gets_one_plain_snapshot(pool: PoolProcess, tmp_path: Path) -> None:
    words = ["env", "TERM=dumb", *command(pool, "top", "--interval", "0.2")]
    with Terminal(*words, place=tmp_path, lines=40) as terminal:
        screen = terminal.wait_for("ended 0", "Runs out first")
        assert "q quit" not in screen
        assert not CODES.search(terminal.screen(colours=True).replace("\x1b[39m", ""))


def test_piped_it_prints_plain_snapshots(pool: PoolProcess) -> None:
    once = run(pool, "top", "--interval", "0.2")
    assert once.count("Runs out first") == 1
    assert "\x1b" not in once
    assert max(map(len, once.splitlines())) <= 100
    assert run(pool, "top", "--interval", "0.1", "--count", "2").count("Runs out first") == 2
    assert run(pool, "top", "--interval", "0.1", PYTHONIOENCODING="ascii").isascii()


def test_json_is_one_object_a_line(pool: PoolProcess) -> None:
    lines = run(pool, "top", "--json", "--interval", "0.1", "--count", "2").splitlines()
    facts = [json.loads(line) for line in lines]
    assert len(facts) == 2
    assert [tier["name"] for tier in facts[1]["tiers"]] == ["dram", "disk"]
    assert facts[1]["namespaces"][0]["chunks"]["dram"] == 4
    page = (Path(__file__).parents[2] / "docs" / "terminal.md").read_text()
    documented = {
        name
        for row in page.split("figures of one interval:")[1].split("\n\n")[1].splitlines()
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert documented == facts[0].keys()
    (directory,) = facts[1]["tiers"][1]["volumes"]
    assert directory["path"] == str(pool.place / "disk")
    with subprocess.Popen(
        command(pool, "stats", "--json", "--watch", "0.1"), stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        ups = [json.loads(watching.stdout.readline())["uptime_s"] for _ in range(3)]
        watching.terminate()
        assert watching.wait(HANG_S) == 143
    assert sorted(ups) == ups


def test_stats_are_for_people_and_raw_names_for_programs(pool: PoolProcess) -> None:
    text = run(pool, "stats")
    raw = json.loads(run(pool, "stats", "--json"))
    assert "4 chunks looked up: dram 100 %, disk 0 %, absent 0 %" in text
    assert re.search(r"^  dram .* 16 MiB ", text, re.MULTILINE)
    assert raw["namespaces"][0]["namespace"] in text
    for name in raw["metrics"]:
        assert "_" not in name or name not in text


def test_every_heading_is_documented(pool: PoolProcess) -> None:
    page = (Path(__file__).parents[2] / "docs" / "terminal.md").read_text()
    printed = run(pool, "stats").splitlines() + run(pool, "top", "--interval", "0.1").splitlines()
    headings = {row for row in printed if row and row[0].isupper()}
    assert len(headings) > 10
    for heading in headings:
        assert f"| {heading.partition(' by ')[0]}" in page, heading
