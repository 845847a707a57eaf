"""With the pool and without it, real vLLM gives the same tokens and has the same bytes.

Tokens are compared in float32, where the same history gives the same answer; pages always.
"""

import mmap
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.engines.vllm.conftest import (
    Answer,
    Engine,
    Pages,
    Tokens,
    cached_of,
    dialogs,
    next_turn,
    tokens_of,
)
from tests.engines.vllm.engine import HAS_BFLOAT16
from tests.pool_process import PoolProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
Start = Callable[..., Engine]
Pools = Callable[..., PoolProcess]
TURNS = 3
SIZE = 10  # dialogs
FIRST = 600  # tokens of their first prompt
ROOMY = ("--dram", "64MiB")  # holds the whole story, however slowly the disk takes it
TWO_THREADS = {"OMP_NUM_THREADS": "2"}  # for a model that has something to compute


@dataclass
class Story:
    """What vLLM alone says in some turns of every dialog, recomputing everything."""

    prompts: list[list[Tokens]]
    answers: list[list[Tokens]]


def told_by(engine: Engine, count: int = SIZE, first: int = FIRST) -> Story:
    story = Story([dialogs(count, first)], [])
    for turn in range(TURNS + 1):
        answers = engine.generate(story.prompts[-1])
        story.answers.append(tokens_of(answers))
        story.prompts.append(next_turn(story.prompts[-1], answers, turn))
    return story


@pytest.fixture(scope="module")
def story(bare: Engine) -> Story:
    return told_by(bare)


def hold(engine: Engine, story: Story) -> list[list[Answer]]:
    """All turns but the last; each must be answered as in the story."""
    turns = []
    for turn in range(TURNS):
        turns.append(engine.generate(story.prompts[turn]))
        assert tokens_of(turns[-1]) == story.answers[turn]
    return turns


def end(engine: Engine, story: Story) -> int:
    """The last turn, likewise; how many tokens of it were not computed."""
    answers = engine.generate(story.prompts[TURNS])
    assert tokens_of(answers) == story.answers[TURNS]
    return cached_of(answers)


def test_t50_answers_and_pages_are_equal_through_dram_restarts_and_nvme(
    model: Path, pools: Pools, start: Start, story: Story, tmp_path: Path
) -> None:
    pages = Pages(tmp_path / "pages")
    pool = pools(*ROOMY)
    engine = start(model, pool, witness=pages.file)
    engine.share(pool)
    assert cached_of(hold(engine, story)[1]) >= SIZE * 512, "later turns come from the pool"
    engine.kill()
    second = start(model, pool, witness=pages.file)
    second.share(pool)
    assert end(second, story) == SIZE * 768, "the next engine finds it all"
    second.kill()
    pool.stop()
    pool.start()
    third = start(model, pool, witness=pages.file)
    third.share(pool)
    assert end(third, story) == SIZE * 768, "and so does the next pool"
    assert pool.stats()["counters"]["disk.loaded"] >= SIZE * 3
    pages.check()
    assert pages.loaded >= 3 * SIZE * 4
    assert pages.wrong == 0


def test_everything_through_nvme(
    model: Path, pools: Pools, start: Start, story: Story, tmp_path: Path
) -> None:
    """DRAM of a few chunks; then records are corrupted, and then both are killed."""
    pages = Pages(tmp_path / "pages")
    pool = pools("--dram", "4MiB")
    engine = start(model, pool, witness=pages.file)
    engine.share(pool)
    assert cached_of(hold(engine, story)[1]) >= SIZE * 384
    assert pool.stats()["counters"]["disk.loaded"] >= SIZE
    flip_records(pool)
    end(engine, story)
    counters = pool.stats()["counters"]
    assert counters.get("misses.corrupt", 0) > 0, "what was corrupted was asked for, and noticed"
    engine.kill()
    pool.kill()
    pool.start()
    again = start(model, pool, witness=pages.file)
    again.share(pool)
    end(again, story)
    pages.check()
    assert pages.loaded > 0
    assert pages.wrong == 0


def flip_records(pool: PoolProcess) -> None:
    """Every fourth page of every region on disk has a byte changed under the pool's feet."""
    for path in (pool.place / "disk").rglob("region-*"):
        with path.open("r+b") as region:
            for at in range(64 * 1024, path.stat().st_size, 4 * mmap.PAGESIZE):
                region.seek(at)
                old = region.read(1)
                region.seek(at)
                region.write(bytes([old[0] ^ 255]))
            os.fsync(region.fileno())


def test_a_disk_that_is_full_or_broken(
    model: Path, pools: Pools, start: Start, story: Story, place: Path
) -> None:
    faults = place / "faults"
    faults.write_text("")
    pool = pools("--dram", "4MiB", "--faults-file", str(faults), faulty=True)
    engine = start(model, pool)
    engine.share(pool)
    assert tokens_of(engine.generate(story.prompts[0])) == story.answers[0]
    for turn, fault in enumerate(["write:errno=ENOSPC", "read:errno=EIO", "*:errno=EIO"], 1):
        faults.write_text(fault + "\n")
        pool.signal(signal.SIGHUP)
        assert tokens_of(engine.generate(story.prompts[turn])) == story.answers[turn]
    pool.check_alive()


def test_a_dead_pool_is_a_miss_and_a_new_one_is_used(
    model: Path, pools: Pools, start: Start, story: Story
) -> None:
    pool = pools(*ROOMY)
    engine = start(model, pool)
    engine.share(pool)
    assert tokens_of(engine.generate(story.prompts[0])) == story.answers[0]
    pool.kill()
    assert tokens_of(engine.generate(story.prompts[1])) == story.answers[1]
    pool.start()
    up = time.monotonic()
    while pool.stats()["server"]["engines"] < 2:  # the one that asks is one
        engine.generate(dialogs(1, 20, seed=5), answer=2)
        assert time.monotonic() < up + 2, "the new pool is joined within 2 s"
    assert tokens_of(engine.generate(story.prompts[2])) == story.answers[2]
    engine.generate(dialogs(4, FIRST, seed=8))  # pushes it all out of the KV cache
    assert end(engine, story) >= SIZE * 512
    engine_bytes, slab = resident_of(engine, "forebay-slab"), pool.slab_bytes()
    assert engine_bytes <= slab * 1.1, "no process holds the dead pool's slab"


def resident_of(engine: Engine, name: str) -> int:
    """Bytes of a mapping that are resident in the largest of an engine's processes."""
    most = 0
    for pid in Path("/proc").iterdir():
        if not pid.name.isdigit():
            continue
        try:
            if os.getpgid(int(pid.name)) == engine.process.pid:
                most = max(most, _mapped(pid / "smaps", name))
        except OSError:
            continue  # it has ended meanwhile
    return most


def _mapped(smaps: Path, name: str) -> int:
    total, is_it = 0, False
    for line in smaps.read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_it = name in line
        elif is_it and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.parametrize("shape", ["slim", "smol"])
def test_t50_other_shapes(
    shape: str, request: pytest.FixtureRequest, pools: Pools, start: Start, tmp_path: Path
) -> None:
    path = request.getfixturevalue(shape)
    count, kv_bytes = (6, 4 << 20) if shape == "slim" else (3, 96 << 20)
    start = partial(start, variables=TWO_THREADS if shape == "smol" else {})
    alone = start(path, enable_prefix_caching=False, kv_cache_memory_bytes=kv_bytes)
    story = told_by(alone, count)
    alone.kill()
    pages = Pages(tmp_path / "pages")
    pool = pools("--dram", "256MiB", disk_bytes=512 << 20)
    engine = start(path, pool, witness=pages.file, kv_cache_memory_bytes=kv_bytes)
    engine.share(pool)
    assert cached_of(hold(engine, story)[1]) >= count * 512
    engine.kill()
    pool.stop()
    pool.start()
    again = start(path, pool, witness=pages.file, kv_cache_memory_bytes=kv_bytes)
    again.share(pool)
    assert end(again, story) >= count * 768, "from NVMe"
    pages.check()
    assert pages.loaded >= count * 6
    assert pages.wrong == 0


if HAS_BFLOAT16:

    def test_in_bfloat16_no_more_answers_differ_than_by_vllm_itself(
        smol: Path, pools: Pools, start: Start, tmp_path: Path
    ) -> None:
        """KV of decoded tokens is not that of prefilled ones, so vLLM differs from itself there."""
        count, each = 6, {"dtype": "bfloat16", "max_num_seqs": 1, "variables": TWO_THREADS}
        alone = start(smol, enable_prefix_caching=False, kv_cache_memory_bytes=64 << 20, **each)
        prompts = dialogs(count, 500)
        first = alone.generate(prompts, answer=40)
        prompts = next_turn(prompts, first, 0)
        recomputed = tokens_of(alone.generate(prompts))
        alone.kill()
        own = start(smol, kv_cache_memory_bytes=1 << 30, **each)
        own.generate(dialogs(count, 500), answer=40)
        by_itself = own.generate(prompts)
        assert cached_of(by_itself) >= count * 512
        own.kill()
        pages = Pages(tmp_path / "pages")
        pool = pools("--dram", "512MiB", disk_bytes=1 << 30)
        engine = start(smol, pool, witness=pages.file, kv_cache_memory_bytes=48 << 20, **each)
        engine.share(pool)
        engine.generate(dialogs(count, 500), answer=40)
        by_pool = engine.generate(prompts)
        assert cached_of(by_pool) >= count * 512
        differ = [
            sum(a != b for a, b in zip(tokens_of(answers), recomputed, strict=True))
            for answers in (by_pool, by_itself)
        ]
        print(f"answers that differ in bfloat16, of {count}: pool {differ[0]}, vLLM {differ[1]}")
        assert differ[0] <= differ[1]
        pages.check()
        assert pages.loaded > 0
        assert pages.wrong == 0


def test_a_planted_wrong_chunk_changes_answers_and_pages(
    model: Path, pools: Pools, start: Start, story: Story, tmp_path: Path
) -> None:
    """The control: were bytes ever wrong, these tests would notice."""
    pages = Pages(tmp_path / "pages")
    pool = pools(*ROOMY)
    engine = start(model, pool, witness=pages.file)
    engine.share(pool)
    hold(engine, story)
    pool.spoil_slab()
    answers = engine.generate(story.prompts[TURNS])
    assert cached_of(answers) >= SIZE * 512
    assert tokens_of(answers) != story.answers[TURNS]
    pages.check()
    assert pages.wrong > 0
