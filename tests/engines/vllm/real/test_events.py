"""Routers hear what the pool has, over vLLM's own KV events: a real engine, a real subscriber."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engines.vllm.real.engine import HANG_S, Engine
from tests.engines.vllm.real.models import Tokens, dialogs
from tests.engines.vllm.real.router import Router
from tests.pool_process import PatientClient, PoolProcess, is_written, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
PROMPT = 600  # tokens: two chunks of 256, and a rest
IN_CHUNKS = 512
BLOCK = 128  # tokens, on a CPU


@pytest.fixture
def endpoint(place: Path) -> str:
    return f"ipc://{place}/events"


@pytest.fixture
def router(endpoint: str) -> Iterator[Router]:
    listener = Router(endpoint)
    yield listener
    listener.close()


def hear(engine: Engine, router: Router) -> None:
    """Ask until the subscription has reached the engine: what follows is not missed."""
    seed = 20_000

    def is_heard() -> bool:
        nonlocal seed
        seed += 1
        engine.generate(dialogs(1, 300, seed), answer=2)
        return router.listen()

    wait_until(is_heard, "the first event", HANG_S)
    assert engine.do("settle")


def blocks_of(router: Router, prompt: Tokens) -> set[int]:
    """The blocks of a prompt's whole chunks, as the engine's own events name them."""
    tokens = {tuple(prompt[at : at + BLOCK]) for at in range(0, IN_CHUNKS, BLOCK)}
    found = router.described("GPU")
    blocks = {block for block, described in found.items() if described[1] in tokens}
    assert len(blocks) == IN_CHUNKS // BLOCK
    return blocks


def wait_for(router: Router, is_so: Callable[[], object], what: str) -> None:
    def is_heard() -> object:
        router.listen()
        return is_so()

    wait_until(is_heard, what, HANG_S)


def test_a_router_sees_what_is_stored_found_on_disk_and_gone(
    model: Path,
    start_pool: Callable[..., PoolProcess],
    start_engine: Callable[..., Engine],
    router: Router,
    endpoint: str,
) -> None:
    pool = start_pool("--dram", "64MiB")
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    engine = start_engine(model, pool, kv_events_config=config)
    engine.share(pool)
    hear(engine, router)
    prompt = dialogs(1, PROMPT)[0]

    def ask() -> None:
        assert engine.do("settle")
        assert engine.do("empty_cache"), "what is known comes from the pool"
        engine.generate([prompt], salt="tenant")
        assert engine.do("settle")

    ask()
    wait_for(router, lambda: router.media["CPU"], "what the engine has stored")
    blocks = blocks_of(router, prompt)
    wait_for(router, lambda: blocks <= router.media["CPU"], "all chunks of the prompt")
    assert not blocks & router.media["STORAGE"], "nobody has said so"
    ours, theirs = router.described("CPU"), router.described("GPU")
    assert {block: ours[block] for block in blocks} == {block: theirs[block] for block in blocks}
    assert sum(b"tenant" in ours[block][3] for block in blocks) == 1, "as vLLM has it: the first"

    # Another pool on the same disk: what the old one had is gone until a lookup finds it.
    wait_until(lambda: is_written(pool), "the disk", HANG_S)
    pool.stop()
    pool.start()
    engine.rejoin()
    wait_for(router, lambda: not router.media["CPU"], "the end of the first pool")
    ask()
    wait_for(router, lambda: blocks <= router.media["STORAGE"], "what lies on the disk")

    # Cleared: the next lookup misses it, and it is stored again.
    with PatientClient(pool.socket) as client:
        cleared = client.clear(None)
    assert getattr(cleared, "ok", False), cleared
    ask()
    wait_for(router, lambda: not router.media["STORAGE"] & blocks, "what was cleared")
    wait_for(router, lambda: blocks <= router.media["CPU"], "what was stored again")
    assert engine.do("state")["failures"] == 0
    assert not engine.do("has_module", name="forebay.engines.vllm.observing.spans"), "not traced"
