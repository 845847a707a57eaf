"""Several hosts in simulation: what a store between them changes, by hand and by the command."""

import json
import random
from pathlib import Path

import pytest

from forebay.cli.main import main
from forebay.sim.hosts import (
    VISIBLE_S,
    Cluster,
    Routing,
    SharedStore,
    SimulatedHost,
    load_of,
    simulate_hosts,
)
from forebay.sim.replay import Sizes
from forebay.sim.trace import CHUNK_TOKENS, Request, Trace

SIZES = Sizes(dram_chunks=1000, lower_chunks=(1000,))
KEYS = [bytes([number]) * 16 for number in range(6)]


def two_hosts(store_chunks: int, sizes: Sizes = SIZES) -> tuple[SharedStore, list[SimulatedHost]]:
    store, cluster = SharedStore(), Cluster(2, Routing.RANDOM, sizes, store_chunks)
    return store, [SimulatedHost(cluster, store, host) for host in range(2)]


def serve(store: SharedStore, host: SimulatedHost, at_s: float) -> tuple[int, int]:
    store.now = at_s
    return host.serve(KEYS, at_s)


def test_another_host_finds_a_chunk_when_it_is_published() -> None:
    store, (a, b) = two_hosts(store_chunks=1000)
    assert serve(store, a, 0.0) == (0, 0)
    assert serve(store, a, 1.0) == (6, 0)
    assert serve(store, b, VISIBLE_S - 1) == (0, 0), "not published yet: it computes the same"
    store, (a, b) = two_hosts(store_chunks=1000)
    serve(store, a, 0.0)
    assert serve(store, b, VISIBLE_S) == (0, 6), "all from the store"
    assert serve(store, b, VISIBLE_S + 1) == (6, 0), "and from its DRAM from then on"
    assert a.remote is not None
    assert b.remote is not None
    assert (a.remote.written, a.remote.read_chunks) == (6, 0)
    assert (b.remote.written, b.remote.read_chunks) == (0, 6), "nobody stores what another has"


def test_without_a_store_a_host_finds_its_own_alone() -> None:
    store, (a, b) = two_hosts(store_chunks=0)
    serve(store, a, 0.0)
    assert serve(store, b, 1000.0) == (0, 0)


def test_what_a_host_may_keep_in_the_store_is_kept_to() -> None:
    sizes, draw = Sizes(dram_chunks=8, lower_chunks=()), random.Random(1)
    store, hosts = two_hosts(32, sizes)
    for number in range(400):
        store.now = 10.0 * number
        dialog = draw.randrange(20).to_bytes(8, "big")
        keys = [dialog + depth.to_bytes(8, "big") for depth in range(6)]
        hosts[draw.randrange(2)].serve(keys, store.now)
        for host, pool in enumerate(hosts):
            assert pool.remote is not None
            own = {key for key, owners in store.written.items() if host in owners}
            assert own == pool.remote.held.keys()
            assert len(own) <= 32
    assert sum(pool.remote.read_chunks for pool in hosts if pool.remote) > 0


def trace_of(sessions: int) -> Trace:
    """Dialogs of six turns, one in half a minute, each turn two chunks longer."""
    made, chunk = [], 0
    for _ in range(sessions):
        keys = [(chunk + number).to_bytes(16, "big") for number in range(14)]
        chunk += 14
        turns = [Request(30.0 * turn, keys[: 2 + 2 * turn], 0) for turn in range(6)]
        made.append([turn._replace(tokens=len(turn.keys) * CHUNK_TOKENS) for turn in turns])
    return Trace(made, open_loop=False)


def test_sessions_are_drawn_again_and_have_nothing_in_common() -> None:
    cluster = Cluster(3, Routing.STICKY, SIZES, users=4, sessions=8)
    load = list(load_of(trace_of(2), cluster, seed=5))
    assert len(load) == 3 * 8 * 6, "far more sessions than the trace has"
    roots = {request.keys[0] for _, request in load}
    assert len(roots) == 3 * 8
    for root in roots:
        assert len({host for host, request in load if request.keys[0] == root}) == 1, "sticky"
    assert load == list(load_of(trace_of(2), cluster, seed=5))


def test_a_store_makes_random_routing_nearly_as_good_as_sticky() -> None:
    rates = {}
    for routing in Routing:
        for store_chunks in (0, 10_000):
            cluster = Cluster(4, routing, SIZES, store_chunks, users=4, sessions=8)
            result = simulate_hosts(trace_of(5), cluster)
            assert result.requests == 4 * 8 * 6
            rates[routing, bool(store_chunks)] = result.hit_rate
            assert (result.store_tokens > 0) == (bool(store_chunks) and routing == "random")
            assert (
                result.store_read_bytes == result.store_tokens * SIZES.chunk_bytes // CHUNK_TOKENS
            )
    sticky = rates[Routing.STICKY, False]
    assert rates[Routing.STICKY, True] == sticky
    assert rates[Routing.RANDOM, False] < 0.8 * sticky
    assert rates[Routing.RANDOM, True] == pytest.approx(sticky, abs=0.02)


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    path = tmp_path / "agents.jsonl"
    rows = [
        {
            "id": f"s{number}",
            "block_size": 64,
            "requests": [
                {"t": 40 * turn, "in": 2048 * (turn + 1), "hash_ranges": [[0, 32 * turn + 31]]}
                for turn in range(4)
            ],
        }
        for number in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_the_command_has_a_line_for_every_case(
    agents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sim", "--trace", str(agents), "--dram-tokens", "100k", "--hosts", "1,3"]
    words += ["--users", "4", "--sessions", "2", "--store-tokens", "1M"]
    assert main([*words, "--json"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    names = [(each["hosts"], each["routing"], each["store_tokens_a_host"] > 0) for each in cases]
    assert len(set(names)) == len(cases) == 2 * 2 * 2
    assert {each["requests"] for each in cases if each["hosts"] == 3} == {3 * 8 * 4}
    assert main([*words, "--routing", "sticky"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("each host: 4 users, 8 sessions, DRAM of 99,840 tokens")
    assert [line.split()[:2] for line in table[2:]] == [
        *[["1", "sticky,"]] * 2,
        *[["3", "sticky,"]] * 2,
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--hosts", "0"], "is no number of hosts"),
        (["--hosts", "1,x"], "is no number of hosts"),
        (["--hosts", "1001"], "is no number of hosts"),
        (["--hosts", "2", "--sessions", "0"], "--sessions counts those of a user"),
        (["--hosts", "900", "--users", "1000000"], "more than 1,000,000 sessions"),
        (["--hosts", "2", "--policy", "lru"], "leave --policy"),
        (["--hosts", "2", "--prompt-max", "1"], "--prompt-max leaves none"),
    ],
)
def test_what_cannot_be_simulated_is_one_sentence(
    agents: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["sim", "--trace", str(agents), "--dram-tokens", "100k", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
