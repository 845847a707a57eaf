"""Images and prompt embeddings on real vLLM: known by what they are, whatever they are called."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.engine import Engine, RecordedPages, cached_of, stored_chunks
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import IMAGE, Tokens, dialogs, made_image_model
from tests.engines.vllm.real.test_parallel import check_sleep, disturbed_by
from tests.pool_process import PoolProcess, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.models, pytest.mark.timeout(1800)]
StartEngine = Callable[..., Engine]
StartPool = Callable[..., PoolProcess]
CHUNK = 256  # tokens
BLOCK = 128
IMAGE_TOKENS = 19  # that come in the place of one
RED, BLUE = (200, 30, 30), (30, 30, 200)
SEES: dict[str, Any] = {"skip_tokenizer_init": False}
KEEPS = {"keep_on_reset": True}


@pytest.fixture(scope="module")
def image_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = forked.call(made_image_model, tmp_path_factory.mktemp("image-model"))
    return made


def prompt(before: int) -> Tokens:
    """So many tokens, an image, and tokens to behind the end of two chunks."""
    draw = random.Random(before)
    tokens = [draw.randrange(1, 2000) for _ in range(2 * CHUNK + 40)]
    return [*tokens[:before], IMAGE, *tokens[before + IMAGE_TOKENS :]]


EARLY, LATE = prompt(100), prompt(CHUNK + 40)


def seen(engine: Engine, tokens: Tokens, colour: tuple[int, ...], **more: Any) -> tuple[Any, int]:
    """The answer, and the tokens of the prompt that were not computed."""
    (answer,) = engine.generate([tokens], images=[colour], **more)
    return answer.tokens, answer.cached


def test_t50_t10_two_images_of_one_size(
    image_model: Path, start_pool: StartPool, start_engine: StartEngine, tmp_path: Path
) -> None:
    pages = RecordedPages(tmp_path / "pages")
    alone = start_engine(image_model, enable_prefix_caching=False, **SEES)
    red, blue = (seen(alone, EARLY, colour)[0] for colour in (RED, BLUE))
    late_red, late_blue = (seen(alone, LATE, colour)[0] for colour in (RED, BLUE))
    alone.kill()
    assert red != blue, "images matter"
    pool = start_pool("--dram", "64MiB")
    engine = start_engine(image_model, pool, recorded=pages.file, settings=KEEPS, **SEES)
    engine.share(pool)
    before = stored_chunks(pool)
    assert seen(engine, EARLY, RED) == (red, 0)
    assert seen(engine, LATE, RED) == (late_red, 0)
    engine.empty_cache()
    wait_until(lambda: stored_chunks(pool) >= before + 4, "all commits", 300)
    assert seen(engine, EARLY, RED) == (red, 2 * CHUNK), "DRAM"
    assert seen(engine, EARLY, BLUE) == (blue, 0), "another image, the same tokens"
    assert seen(engine, LATE, BLUE) == (late_blue, CHUNK), "what comes before it is shared"
    check_sleep(engine, [EARLY], [red], 2 * CHUNK, images=[RED])
    engine.kill()
    second = start_engine(image_model, pool, recorded=pages.file, **SEES)
    second.share(pool)
    assert seen(second, EARLY, RED, names=["logo"]) == (red, 2 * CHUNK), "whatever it is called"
    second.empty_cache()
    pool.stop()
    pool.start()
    second.rejoin()
    assert seen(second, LATE, RED) == (late_red, 2 * CHUNK), "NVMe"
    assert pool.number("operations", tier="disk", direction="load", outcome="ok") >= 2
    second.kill()
    third = start_engine(image_model, pool, recorded=pages.file, **SEES)
    third.share(pool)
    assert seen(third, EARLY, BLUE, names=["logo"]) == (blue, 2 * CHUNK), "not the red one"
    pages.check()
    assert pages.loaded >= 9 * CHUNK // BLOCK
    third.empty_cache()
    disturbed_by(pages).write_text("0,before load,spoil")
    answer, cached = seen(third, EARLY, RED)
    assert cached == 2 * CHUNK
    assert answer != red, "the control: wrong bytes would be noticed"
    has_run("images")


def test_t53_images_that_are_named_by_counters_are_declined(
    image_model: Path, start_pool: StartPool, start_engine: StartEngine
) -> None:
    pool = start_pool("--dram", "64MiB")
    counts = {"mm_processor_cache_gb": 0, "enable_prefix_caching": False}
    engine = start_engine(image_model, pool, **SEES, **counts)
    engine.share(pool)
    for declined in (1, 2):
        assert seen(engine, EARLY, RED)[1] == 0
        assert engine.do("state")["counts"]["declined.media_counted"] == declined


def test_t50_prompt_embeddings(
    model: Path, start_pool: StartPool, start_engine: StartEngine, pages: RecordedPages
) -> None:
    how = {"enable_prompt_embeds": True}
    first, other = dialogs(2, 2 * CHUNK + 40, 6)
    other = first[: CHUNK - 1] + other[CHUNK - 1 :]
    alone = start_engine(model, enable_prefix_caching=False, **how)
    answers = [alone.generate([each], as_rows=True)[0].tokens for each in (first, other)]
    assert answers == [alone.generate([each])[0].tokens for each in (first, other)]
    alone.kill()
    pool = start_pool("--dram", "64MiB")

    def asked(engine: Engine, tokens: Tokens) -> tuple[Tokens, int]:
        (answer,) = engine.generate([tokens], as_rows=True)
        return answer.tokens, answer.cached

    for cached in ((0, BLOCK), (2 * CHUNK, 2 * CHUNK)):  # of the other, vLLM has a block itself
        engine = start_engine(model, pool, recorded=pages.file, settings=KEEPS, **how)
        engine.share(pool)
        before = stored_chunks(pool)
        for tokens, told in zip((first, other), zip(answers, cached, strict=True), strict=True):
            assert asked(engine, tokens) == told
        assert not engine.do("state")["counts"].get("declined.hashing"), "nothing would be stored"
        engine.empty_cache()
        if not cached[0]:
            wait_until(lambda: stored_chunks(pool) >= before + 4, "all commits", 300)  # noqa: B023
        for tokens, answer in zip((first, other), answers, strict=True):
            assert asked(engine, tokens) == (answer, 2 * CHUNK)
        engine.empty_cache()
        assert cached_of(engine.generate([first])) == cached[0], "as tokens"
        if not cached[0]:
            check_sleep(engine, [first, other], answers, 2 * CHUNK, as_rows=True)
            engine.kill()
    engine.empty_cache()
    pool.stop()
    pool.start()
    engine.rejoin()
    for tokens, answer in zip((first, other), answers, strict=True):
        assert asked(engine, tokens) == (answer, 2 * CHUNK), "NVMe"
    assert pool.number("operations", tier="disk", direction="load", outcome="ok") >= 4
    pages.check()
    assert pages.loaded >= 3 * 2 * 2 * CHUNK // BLOCK
    assert pages.wrong == 0
    engine.empty_cache()
    disturbed_by(pages).write_text("0,before load,spoil")
    answer, loaded = asked(engine, first)
    assert loaded == 2 * CHUNK
    assert answer != answers[0], "the control: wrong bytes would be noticed"
    has_run("prompt embeddings")
