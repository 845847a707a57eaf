"""With the pool and without it, real vLLM gives the same tokens and has the same bytes.

Tokens are compared in float32, where the same history gives the same answer; pages always.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.engines.vllm.real.engine import (
    HANG_S,
    Answer,
    Engine,
    RecordedPages,
    cached_of,
    stored_chunks,
    tokens_of,
)
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import HAS_BFLOAT16, Tokens, dialogs, next_turn
from tests.pool_process import PoolProcess, flip_records, is_written, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
StartEngine = Callable[..., Engine]
StartPool = Callable[..., PoolProcess]
TURNS = 3
CHUNK = 256  # tokens
ALL = slice(None)
SIZE = 6  # dialogs: more than an engine's own KV cache has room for
FIRST = 600  # tokens of their first prompt
ROOMY = ("--dram", "64MiB")  # holds all of it, however slowly the disk takes it


@dataclass
class Conversation:
    """What vLLM alone says in some turns of every dialog, recomputing everything."""

    prompts: list[list[Tokens]]  # of every turn
    answers: list[list[Tokens]]

    def take_turn(self, engine: Engine, turn: int, some: slice = ALL) -> list[Answer]:
        """Have it from an engine, of some dialogs: it must be answered as here."""
        answers = engine.generate(self.prompts[turn][some])
        assert tokens_of(answers) == self.answers[turn][some]
        return answers

    def take_turns(self, engine: Engine) -> int:
        """Likewise all but the last; how many tokens of the second were not computed."""
        return cached_of([self.take_turn(engine, turn) for turn in range(TURNS)][1])


def conversation_with(engine: Engine, count: int = SIZE) -> Conversation:
    held = Conversation([dialogs(count, FIRST)], [])
    for turn in range(TURNS + 1):
        held.answers.append(tokens_of(engine.generate(held.prompts[-1])))
        held.prompts.append(next_turn(held.prompts[-1], held.answers[-1], turn))
    return held


@pytest.fixture(scope="module")
def conversation(without_pool: Engine) -> Conversation:
    return conversation_with(without_pool)


@pytest.fixture
def pages(tmp_path: Path) -> RecordedPages:
    return RecordedPages(tmp_path / "pages")


def test_t50_answers_and_pages_are_equal_through_dram_restarts_and_nvme(
    model: Path,
    start_pool: StartPool,
    start_engine: StartEngine,
    conversation: Conversation,
    pages: RecordedPages,
) -> None:
    pool = start_pool(*ROOMY)
    engine = start_engine(model, pool, recorded=pages.file, has_core_process=True)
    engine.share(pool)
    before = stored_chunks(pool)
    assert conversation.take_turns(engine) >= SIZE * 512, "later turns come from the pool"
    stored = before + SIZE * 768 // CHUNK
    wait_until(lambda: stored_chunks(pool) >= stored, "the commit of the last chunk", HANG_S)
    engine.kill()
    second = start_engine(model, pool, recorded=pages.file)
    second.share(pool)
    found = cached_of(conversation.take_turn(second, TURNS))
    assert found == SIZE * 768, "the next engine finds it all"
    second.empty_cache()
    pool.stop()
    pool.start()
    second.rejoin()
    found = cached_of(conversation.take_turn(second, TURNS))
    assert found == SIZE * 768, "and so does it in the next pool"
    assert pool.number("operations", tier="disk", direction="load", outcome="ok") >= SIZE * 3
    pages.check()
    assert pages.loaded >= 3 * SIZE * 4
    assert pages.wrong == 0
    has_run("FullAttentionSpec")


def test_everything_through_nvme(
    model: Path,
    start_pool: StartPool,
    start_engine: StartEngine,
    conversation: Conversation,
    pages: RecordedPages,
) -> None:
    """DRAM of a few chunks; then records are corrupted, and then the pool is killed."""
    pool = start_pool("--dram", "4MiB")
    engine = start_engine(model, pool, recorded=pages.file)
    engine.share(pool)
    for turn, known in ((0, 0), (1, 512)):
        for at in range(0, SIZE, 2):  # what does not fit DRAM unless it is written is not stored
            some = slice(at, at + 2)
            engine.empty_cache()  # what is known comes from the pool, not from the engine
            assert cached_of(conversation.take_turn(engine, turn, some)) == 2 * known
            wait_until(lambda: is_written(pool), "the disk", HANG_S)
    assert pool.number("operations", tier="disk", direction="load", outcome="ok") >= SIZE
    flip_records(pool)
    conversation.take_turn(engine, TURNS)
    corrupt = pool.number("operations", outcome="corrupt")
    assert corrupt > 0, "what was corrupted was asked for, and noticed"
    pool.kill()
    pool.start()
    engine.rejoin()
    engine.empty_cache()
    conversation.take_turn(engine, TURNS)
    pages.check()
    assert pages.loaded > 0
    assert pages.wrong == 0


def test_a_disk_that_is_full_or_broken(
    model: Path,
    start_pool: StartPool,
    start_engine: StartEngine,
    conversation: Conversation,
    place: Path,
) -> None:
    faults = place / "faults"
    faults.write_text("")
    pool = start_pool("--dram", "4MiB", "--faults-file", str(faults), faulty=True)
    engine = start_engine(model, pool)
    engine.share(pool)
    conversation.take_turn(engine, 0)
    for turn, fault in enumerate(["write:errno=ENOSPC", "read:errno=EIO", "*:errno=EIO"], 1):
        faults.write_text(fault + "\n")
        pool.signal(signal.SIGHUP)
        conversation.take_turn(engine, turn)
    pool.check_alive()


@pytest.mark.models
def test_t50_another_shape(
    other_shape: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    count, kv_bytes = 3, 2 << 20
    alone = start_engine(other_shape, enable_prefix_caching=False, kv_cache_memory_bytes=kv_bytes)
    conversation = conversation_with(alone, count)
    alone.kill()
    pool = start_pool(*ROOMY)
    engine = start_engine(other_shape, pool, recorded=pages.file, kv_cache_memory_bytes=kv_bytes)
    engine.share(pool)
    assert conversation.take_turns(engine) >= count * 512
    engine.empty_cache()
    found = cached_of(conversation.take_turn(engine, TURNS))
    assert found >= count * 768
    pages.check()
    assert pages.loaded >= count * 6
    assert pages.wrong == 0


@pytest.mark.models
def test_a_trained_model_in_its_own_format_answers_as_with_vllms_own_prefix_cache(
    start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    """KV of decoded tokens is not that of prefilled ones, so in bfloat16 answers may differ from
    those of recomputed KV. vLLM's own cache has the KV that the pool has: the answers are equal.
    """
    from forebay.engines.start import demo_model

    model = demo_model.prepare()
    known = 256  # tokens: whole blocks, and whole chunks
    options = {"dtype": "bfloat16" if HAS_BFLOAT16 else "float32", "max_num_seqs": 1}
    pool = start_pool("--dram", "256MiB", disk_bytes=512 << 20)
    answers = []
    for more in ({}, {"pool": pool, "recorded": pages.file}):
        engine = start_engine(model, kv_cache_memory_bytes=128 << 20, **options, **more)
        if more:
            engine.share(pool)
        first = dialogs(1, known - 8)
        second = next_turn(first, tokens_of(engine.generate(first, answer=16)), 0)
        if more:
            engine.empty_cache()
        answers.append(engine.generate(second, answer=8))
        assert cached_of(answers[-1]) == known
        engine.kill()
    assert tokens_of(answers[0]) == tokens_of(answers[1])
    pages.check()
    assert pages.loaded > 0
    assert pages.wrong == 0
    has_run("dtypes")


def test_a_planted_wrong_chunk_changes_answers_and_pages(
    model: Path,
    start_pool: StartPool,
    start_engine: StartEngine,
    conversation: Conversation,
    pages: RecordedPages,
) -> None:
    """The control: were bytes ever wrong, these tests would notice."""
    pool = start_pool(*ROOMY)
    engine = start_engine(model, pool, recorded=pages.file)
    engine.share(pool)

    def is_noticed() -> bool:
        """An idle pool looks for damage and drops what it finds; it may be sooner."""
        engine.generate(conversation.prompts[0])
        engine.empty_cache()
        pool.spoil_slab()
        answers = engine.generate(conversation.prompts[1])
        engine.empty_cache()
        return cached_of(answers) > 0 and tokens_of(answers) != conversation.answers[1]

    wait_until(is_noticed, "other answers", HANG_S)
    pages.check()
    assert pages.wrong > 0
