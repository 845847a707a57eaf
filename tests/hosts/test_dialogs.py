"""Real vLLM on two hosts: a dialog goes on where it did not begin, with its history loaded."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tests.engines.vllm.conftest import model as model  # noqa: PLC0414 - a fixture
from tests.engines.vllm.real.conftest import without_pool as without_pool  # noqa: PLC0414
from tests.engines.vllm.real.engine import Engine, tokens_of
from tests.engines.vllm.real.models import Tokens, dialogs, next_turn
from tests.hosts.network import Host, Network
from tests.hosts.sharing import PATIENCE_S, REUSES, share, wait_for_use
from tests.hosts.stores import KINDS, start_pool
from tests.pool_process import PoolProcess, short_directory

pytestmark = [pytest.mark.hosts, pytest.mark.vllm, pytest.mark.timeout(1800)]
KNOWN: Final = 512  # tokens of a prompt of 600, in whole chunks
SEEDS: Final = itertools.count(30_000)


class Server(NamedTuple):
    """An engine on a host, and where it looks for a pool."""

    host: Host
    place: Path
    engine: Engine

    def join(self, url: str) -> PoolProcess:
        """Start a pool beside the engine, and wait until it uses both pool and store."""
        pool = start_pool(self.host, self.place, url)
        wait_for_use(pool)
        self.engine.rejoin()
        self.engine.share(pool)
        return pool


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


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_a_dialog_goes_on_at_another_host(
    servers: list[Server],
    pools: list[PoolProcess],
    without_pool: Engine,
) -> None:
    here, there = (server.engine for server in servers)
    cached, until = 0, time.monotonic() + PATIENCE_S
    while cached < KNOWN:
        # A chunk that finds no slot in time is not stored: then another dialog is tried.
        assert time.monotonic() < until, "nothing of the dialog was found"
        (prompt,) = dialogs(1, 600, next(SEEDS))
        answer = answered_again(here, prompt)
        assert [answer] == tokens_of(without_pool.generate([prompt]))
        share(pools[0], pools[1], f"after a dialog {prompt[0]}")
        turn = next_turn([prompt], [answer], next(SEEDS))
        (reply,) = there.generate(turn)
        assert [reply.tokens] == tokens_of(without_pool.generate(turn)), "loaded or not"
        cached = reply.cached
    assert pools[1].number("operations", tier="remote", direction="load", outcome="ok") >= 2
