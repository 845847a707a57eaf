"""Real vLLM on two hosts: a dialog goes on where it did not begin, with its history loaded.

So it does again when their store has failed and is back.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tests.engines.vllm.conftest import model as model  # noqa: PLC0414 - a fixture
from tests.engines.vllm.real.conftest import without_pool as without_pool  # noqa: PLC0414
from tests.engines.vllm.real.engine import Engine, tokens_of
from tests.engines.vllm.real.models import Tokens, dialogs, next_turn
from tests.hosts.conftest import Fault
from tests.hosts.network import Host, Network
from tests.hosts.sharing import (
    PATIENCE_S,
    REUSES,
    failures,
    send,
    wait_for_found,
    wait_for_use,
    wait_until,
)
from tests.hosts.stores import KINDS, start_pool
from tests.pool_process import PoolProcess, short_directory

from forebay.tiers.remote.index.used import unpack_used, used_name

pytestmark = [pytest.mark.hosts, pytest.mark.vllm, pytest.mark.timeout(1800)]
KNOWN: Final = 512  # tokens of a prompt of 600, in whole chunks
SEEDS: Final = itertools.count(30_000)
WARM: Final = 800_000  # bytes: two chunks of the model, and not three


class Server(NamedTuple):
    """An engine on a host, and where it looks for a pool."""

    host: Host
    place: Path
    engine: Engine

    def join(self, url: str, module: str = "forebay.cli") -> PoolProcess:
        """Start a pool beside the engine, and wait until it uses both pool and store."""
        pool = start_pool(self.host, self.place, url, module)
        wait_for_use(pool)
        self.use(pool)
        return pool

    def use(self, pool: PoolProcess) -> None:
        """Wait until the engine uses a pool."""
        self.engine.rejoin()
        self.engine.share(pool)


@pytest.fixture(scope="module")
def servers(hosts: Network, model: Path) -> Iterator[list[Server]]:
    with short_directory() as place:
        made = []
        for host in (hosts.a, hosts.b):
            pool = place / host.name
            settings = {"socket": str(pool / "pool.sock")}
            variables = {"VLLM_HOST_IP": host.address}
            engine = Engine(model, settings=settings, network=host.holder, variables=variables)
            made.append(Server(host, pool, engine))
        yield made
        for server in made:
            server.engine.kill()


@pytest.fixture
def pools(servers: list[Server], url: str) -> Iterator[list[PoolProcess]]:
    joined = [server.join(url) for server in servers]
    yield joined
    for pool in joined:
        pool.kill()


def answered_again(engine: Engine, prompt: Tokens) -> Tokens:
    """The answer to a prompt that is asked for several times, each time with the pool's help."""
    answers = []
    for _ in range(1 + REUSES):
        answers += tokens_of(engine.generate([prompt]))
        engine.empty_cache()
    assert answers == [answers[0]] * len(answers)
    return answers[0]


def gone_on(servers: list[Server], pools: list[PoolProcess], without_pool: Engine) -> Tokens:
    """A dialog goes on at the other host, loaded; the next turn of one that could as well."""
    here, there = (server.engine for server in servers)
    cached, loaded, until = 0, loads(pools[1], outcome="ok"), time.monotonic() + PATIENCE_S
    while cached < KNOWN:
        # A chunk that finds no slot in time is not stored: then another dialog is tried.
        assert time.monotonic() < until, "nothing of the dialog was found"
        prompts = dialogs(2, 600, next(SEEDS))
        answers = [answered_again(here, prompt) for prompt in prompts]
        assert answers == tokens_of(without_pool.generate(prompts))
        wait_for_found(pools[1], send(pools[0], f"after a dialog {prompts[0][0]}"))
        turn, other = next_turn(prompts, answers, next(SEEDS))
        (reply,) = there.generate([turn])
        assert [reply.tokens] == tokens_of(without_pool.generate([turn])), "loaded or not"
        cached = reply.cached
    assert loads(pools[1], outcome="ok") >= loaded + 2
    return other


def loads(pool: PoolProcess, **outcome: str) -> int:
    """How many records a pool has asked its store for."""
    return pool.number("operations", tier="remote", direction="load", **outcome)


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_t25_t61_a_dialog_goes_on_at_another_host_and_so_it_does_after_faults(
    servers: list[Server], pools: list[PoolProcess], without_pool: Engine, faults: list[Fault]
) -> None:
    """While it fails its loads are misses, and a request that needs none of them waits for none."""
    here, there = (server.engine for server in servers)
    turn = gone_on(servers, pools, without_pool)
    for fault in faults:
        asked, failed = loads(pools[1]), failures(pools[1])
        (new,) = dialogs(1, 600, next(SEEDS))
        beside = new[:20]  # too short to be looked up
        with fault():
            reply, meanwhile = replies = there.generate([turn, beside])
            assert tokens_of(replies) == tokens_of(without_pool.generate([turn, beside]))
            assert reply.cached == 0, "the store is out of reach"
            if loads(pools[1]) > asked:
                assert meanwhile.first_step < reply.first_step
            assert [answered_again(here, new)] == tokens_of(without_pool.generate([new]))
            wait_until(lambda: failures(pools[1]) > failed, "the fault")  # noqa: B023
        turn = gone_on(servers, pools, without_pool)


@pytest.mark.parametrize("url", ["juicefs"], indirect=True)
def test_a_new_host_has_what_all_prompts_begin_with_before_anybody_asks(
    servers: list[Server], url: str, without_pool: Engine
) -> None:
    here, there = servers
    (shared,) = dialogs(1, KNOWN, next(SEEDS))
    name = f"{url.removeprefix('file://')}/{used_name(here.host.name)}"
    told, until = Path(f"/proc/{here.host.holder}/root{name}"), time.monotonic() + PATIENCE_S

    def count_told() -> int:
        found = unpack_used(told.read_bytes()) if told.exists() else []
        return len(found) if isinstance(found, list) else 0

    with ExitStack() as end:
        while count_told() < 2:  # chunks; of what is used as often, the start is told first
            with ExitStack() as told_enough:
                told_enough.callback(here.join(url, "tests.hosts.hasty_pool").kill)
                while count_told() < 2:
                    assert time.monotonic() < until, "nothing is told of what is used most"
                    for tail in dialogs(2, 300, next(SEEDS)):
                        answered_again(here.engine, [*shared, *tail])
            # It has been killed, so it tells nothing else; a moment before it may have, and less.
        pool = start_pool(there.host, there.place, f"{url}?warm={WARM}")
        end.callback(pool.kill)
        wait_until(lambda: pool.number("prefetched_chunks", tier="remote") == 2, "what is used")
        assert pool.number("lookups") == 0, "nobody has asked for anything"
        there.use(pool)
        (tail,) = dialogs(1, 300, next(SEEDS))
        (reply,) = there.engine.generate([[*shared, *tail]])
        assert [reply.tokens] == tokens_of(without_pool.generate([[*shared, *tail]]))
        assert reply.cached == KNOWN
        assert pool.number("prefetched_used_chunks", tier="remote") == 2
        assert pool.number("operations", tier="remote", direction="load") == 2, "once, ahead"
