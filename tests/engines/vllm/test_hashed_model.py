"""Models of several groups under vLLM's own scheduler: every step sees the KV it must see."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.hashed_model import VOCABULARY, HashedModel, answer_to, spec_of
from tests.engines.vllm.real.forked import VARIABLES
from tests.pool_process import PoolProcess, running_pool, short_directory

from forebay.engines.boundary import BrokenError
from forebay.engines.copies.contract import LoadPart, Piece
from forebay.engines.copies.pages import Pages
from forebay.engines.geometry import FULL, Reach, ReachKind
from forebay.engines.vllm import versions

pytestmark = pytest.mark.vllm
WINDOW, SHORT = Reach(ReachKind.WINDOW, 150), Reach(ReachKind.WINDOW, 20)
CHUNKED, STATE = Reach(ReachKind.CHUNKED, 160), Reach(ReachKind.STATE)
KINDS = {
    "full": [(FULL, 16)],
    "windows": [(FULL, 16), (WINDOW, 16), (WINDOW, 16)],
    "short windows of longer blocks": [(FULL, 16), (SHORT, 32), (SHORT, 32)],
    "chunked": [(FULL, 16), (CHUNKED, 16), (CHUNKED, 16)],
    "everything": [(FULL, 32), (WINDOW, 16), (SHORT, 32), (CHUNKED, 32)],
    "states": [(FULL, 32), (STATE, 32), (STATE, 32)],
}
BLOCKS = 160
CHUNK = 64  # tokens
SETTINGS = {"chunk_tokens": CHUNK, "weights_id": "hashes", "min_tokens": 32, "keep_on_reset": True}


@pytest.fixture(scope="module")
def config(model: Path) -> Any:
    os.environ.update(VARIABLES)
    from vllm.engine.arg_utils import EngineArgs

    transfer = {
        "kv_connector": "ForebayConnector",
        "kv_connector_module_path": "forebay.engines.vllm.connector",
        "kv_role": "kv_both",
    }
    return EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 20,
        max_num_batched_tokens=192,
        max_num_seqs=4,
        kv_transfer_config=transfer,
    ).create_engine_config()


@pytest.fixture
def pool() -> Iterator[PoolProcess]:
    with short_directory() as place, running_pool(place) as pool:
        yield pool


def prompt_of(draw: random.Random, length: int) -> list[int]:
    return [draw.randrange(1, VOCABULARY) for _ in range(length)]


def started(config: Any, pool: PoolProcess, kind: str, lookup_ms: int = 30_000) -> HashedModel:
    told: dict[str, Any] = {**SETTINGS, "lookup_deadline_ms": lookup_ms, "load_deadline_ms": 30_000}
    specs = [spec_of(*each) for each in KINDS[kind]]
    return HashedModel(config, specs, BLOCKS, socket=pool.socket, always_load=True, **told)


def take_turn(model: HashedModel, dialogs: list[list[int]], draw: random.Random) -> list[list[int]]:
    """Have all dialogs answered; what they go on with, some from an earlier point."""
    answers = model.generate(dialogs, answer=draw.randrange(2, 90))
    for prompt, answer in zip(dialogs, answers, strict=True):
        assert answer == answer_to(prompt, len(answer))
    return [
        (said + answer)[: draw.choice([None, 128, 300])] + prompt_of(draw, 40)
        for said, answer in zip(dialogs, answers, strict=True)
    ]


def check_nothing_failed(model: HashedModel) -> None:
    assert not model.side.counts["misses.load_failed"], model.side.counts
    assert not model.worker.boundary.failures
    assert not model.scheduler.connector.boundary.failures


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step waits for slots, however busy the machine is."""
    from forebay.engines.vllm import scheduler

    monkeypatch.setattr(scheduler, "_STEP_WAIT_S", 10.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", KINDS)
def test_t50_every_step_sees_what_it_must_see(config: Any, pool: PoolProcess, kind: str) -> None:
    """Dialogs that go on, branch and run beside each other in too small a KV cache."""
    draw = random.Random(kind)
    model = started(config, pool, kind)
    dialogs = [prompt_of(draw, draw.randrange(150, 400)) for _ in range(4)]
    for turn in range(6):
        dialogs = take_turn(model, dialogs, draw)
        if turn % 2:
            model.empty_cache()
    assert model.side.counts["loads"] > 0, model.side.counts
    check_nothing_failed(model)
    model.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "full"])
def test_what_a_group_does_not_load_is_noticed(
    config: Any, pool: PoolProcess, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without its local records no request could go on."""
    draw = random.Random(kind)
    model = started(config, pool, kind)
    prompt = prompt_of(draw, 230)
    model.generate([prompt])
    model.empty_cache()
    copy_in = Pages.copy_in
    monkeypatch.setattr(
        Pages, "copy_in", lambda self, piece, slab: piece.group or copy_in(self, piece, slab)
    )
    model.memory[:] = 0
    with pytest.raises(AssertionError, match=r"a state|of 192"):
        model.generate([[*prompt, 1]])
    model.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "full"])
def test_t52_what_a_pool_answers_too_late_is_never_stored(
    config: Any, pool: PoolProcess, kind: str
) -> None:
    """By then the engine has freed blocks of local groups, and given them to others."""
    draw = random.Random(kind)
    model = started(config, pool, kind, lookup_ms=1)
    model.generate([prompt_of(draw, 20)])  # its worker has joined
    dialogs = [prompt_of(draw, draw.randrange(150, 400)) for _ in range(4)]
    pool.signal(signal.SIGSTOP)
    dialogs = take_turn(model, dialogs, draw)
    pool.signal(signal.SIGCONT)
    assert model.side.counts["stores.too_late"] > 0
    for _ in range(3):
        model.empty_cache()
        dialogs = take_turn(model, dialogs, draw)  # sees wrong bytes, if there are any
    check_nothing_failed(model)
    model.close()


def test_before_0_30_blocks_that_one_of_several_groups_lacks_end_the_engine(
    config: Any, pool: PoolProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That vLLM would take them for whole. A failed load that it can be told of ends nothing."""
    load = LoadPart("request", 1, [Piece(-1, 0, [3], 0, 1)], is_last=True)
    for kind, ends in (("windows", True), ("full", False)):
        model = started(config, pool, kind)
        with monkeypatch.context() as patched:
            patched.setattr(versions, "reports_failed_requests", lambda: False)
            model.worker._worker.fail(load)
            if ends:
                with pytest.raises(BrokenError, match="several groups"):
                    model.worker.get_block_ids_with_load_errors()
            else:
                assert model.worker.get_block_ids_with_load_errors() == {3}
        model.worker._worker.fail(load)
        assert model.worker.get_block_ids_with_load_errors() == set(), "told by its request"
        model.close()
