"""Who may do what at a real pool's socket, and who gets a place there (F8, F9)."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest
from tests import pool_process
from tests.other_user import (
    OTHER_UID,
    THIRD_UID,
    asked_by_other_user,
    needs_root,
    other_user,
    received,
)
from tests.pool_process import (
    NO_NAMESPACES,
    PatientClient,
    PoolProcess,
    made,
    running_pool,
    wait_until,
)

from forebay.cli.main import main
from forebay.metrics.reading import count
from forebay.pool import wire
from forebay.pool.client import AdminOutcome, Known, Receipt
from forebay.pool.client.session import REFUSED
from forebay.pool.core.budget import Budget, Processes
from forebay.pool.messages import (
    NAMESPACE_RULE,
    PROTOCOL,
    Clear,
    Hello,
    Lookup,
    Resize,
    Settled,
    StatsQuery,
)
from forebay.pool.server.admission import Roles, gives_way
from forebay.pool.server.connection import Connection
from forebay.pool.server.limits import ServerLimits
from forebay.sys.sockets import Peer

CHUNKS, CHAIN = made("admitted")


@contextmanager
def open_pool(place: Path, *flags: str) -> Iterator[PoolProcess]:
    """A pool that other users can reach."""
    place.chmod(0o755)
    with running_pool(place, *flags, disk=False) as pool:
        yield pool


def store(path: str) -> Receipt:
    with PatientClient(path) as client:
        return client.store(CHAIN, [chunk.payload for chunk in CHUNKS])


def operate(path: str) -> tuple[str, dict[str, object]]:
    """What became of a clear and a resize, and what the commands print of it."""
    with PatientClient(path) as client:
        joined = client.join()
        outcomes = [client.clear(None), client.resize(8 << 20)] if joined else []
    said = [each.sentence for each in outcomes if isinstance(each, AdminOutcome) and not each.ok]
    commands = [main([*words, "--socket", path]) for words in (["clear", "--all"], ["stats"])]
    return " ".join(said), {"joined": joined, "commands": commands}


@pytest.mark.slow
@needs_root
def test_an_engine_of_another_user_neither_clears_nor_resizes(place: Path) -> None:
    """F8: `--allow-uid` grants an engine's role, not an operator's."""
    with open_pool(place, "--allow-uid", str(OTHER_UID)) as pool:
        assert asked_by_other_user(partial(store, pool.socket)) == Receipt(stored=4)
        said, seen = asked_by_other_user(partial(operate, pool.socket))
        assert said.count("--operator-uid") == 2
        assert seen == {"joined": True, "commands": [2, 0]}
        assert pool.number("cap_bytes", tier="dram") == pool_process.DRAM_BYTES
        with PatientClient(pool.socket) as client:
            assert client.lookup(CHAIN) == Known(4, 4)
            assert client.clear(None) != AdminOutcome(ok=False, sentence="")
            assert client.lookup(CHAIN) == Known(0, 0), "the pool's own user may"


@pytest.mark.slow
@needs_root
def test_an_operator_of_another_user_gets_no_memory(place: Path) -> None:
    """F8: `--operator-uid` grants an operator's role, not an engine's."""
    with open_pool(place, "--operator-uid", str(OTHER_UID)) as pool:
        assert store(pool.socket) == Receipt(stored=4)
        assert asked_by_other_user(partial(store, pool.socket)) == Receipt(lost=4)
        said, seen = asked_by_other_user(partial(operate, pool.socket))
        assert seen == {"joined": False, "commands": [0, 0]}, said
        with PatientClient(pool.socket) as client:
            assert client.lookup(CHAIN) == Known(0, 0)
        sentence = asked_by_other_user(partial(why_not, pool.socket), THIRD_UID)
        assert sentence.startswith(REFUSED)


def why_not(path: str) -> str:
    with PatientClient(path) as client:
        assert not client.join()
        return client.why


@pytest.mark.slow
def test_only_digits_of_a_namespace_clear_it(place: Path) -> None:
    """F7: neither the library nor the pool takes anything else for a name, or for all of them."""
    namespace = CHAIN.namespace.hex()
    with running_pool(place) as pool, PatientClient(pool.socket) as client:
        assert store(pool.socket) == Receipt(stored=4)
        for wrong in (*NO_NAMESPACES, namespace + "0", f" {namespace} "):
            assert client.clear(wrong) == AdminOutcome(ok=False, sentence=NAMESPACE_RULE)
            answer = client._operate(Clear(wrong), pool_process.HANG_S)
            assert answer == AdminOutcome(ok=False, sentence=NAMESPACE_RULE), "nor has the pool"
        assert client.lookup(CHAIN) == Known(4, 4)
        wait_until(lambda: pool.number("chunks", tier="disk") == 4, "writing behind")
        done = client.clear(namespace[:9].upper())
        assert done == AdminOutcome(
            ok=True,
            sentence="removed 4 chunks (390.6 KiB) from DRAM and 4 records (390.6 KiB) from"
            f" lower tiers, of namespaces {namespace[:16]}.",
        )
        assert client.lookup(CHAIN) == Known(0, 0)


def say(path: str, engine: str, pipe: Pipe) -> None:
    """Join under another's name and under one's own, and settle the other's."""
    answers = []
    for name in (engine, "attacker"):
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(pool_process.HANG_S)
            link.connect(path)
            link.sendall(wire.encode(Hello(PROTOCOL, name)))
            answers.append(b"refused" in link.recv(1 << 16))
            with suppress(OSError):
                link.sendall(wire.encode(Settled(engine)) + b"\0\0\0\0")
                while link.recv(1 << 16):
                    pass  # until the pool has read all of it, and hangs up
    pipe.send(answers)


def settle(path: str, engine: str, pipe: Pipe) -> None:
    """Say of another engine that nobody reads what it was promised."""
    with PatientClient(path) as client:
        assert client.join()
        client._session.post(Settled(engine))
        assert client.stats()
    pipe.send("said")


@pytest.mark.slow
@needs_root
def test_t35_nobody_unpins_what_was_promised_to_another(place: Path) -> None:
    """F9: `Hello` and `Settled` with another's name."""
    with open_pool(place, "--allow-uid", str(OTHER_UID)) as pool:
        assert store(pool.socket) == Receipt(stored=4)
        reader = PatientClient(pool.socket)
        with reader.load(CHAIN):
            session = reader._session
            name, connection = session.engine, session.connection
            assert connection is not None
            connection.close()  # lost, while this process may still read
            wait_until(lambda: pool.held()["connections"] == 0, "the pool to notice")
            assert pool.held()["pinned_chunks"] == 4
            with other_user(partial(say, pool.socket, name)) as pipe:
                assert received(pipe) == [True, False]
            assert pool.held()["pinned_chunks"] == 4, "another user has no say in it"
            with other_user(partial(settle, pool.socket, name), os.geteuid()) as pipe:
                received(pipe)
            assert pool.held()["pinned_chunks"] == 4, "nor another process of the same user"
        reader.join()
        wait_until(lambda: pool.held()["pinned_chunks"] == 0, "what is its reader's own to settle")
        reader.close()


def occupy(path: str, count: int, pipe: Pipe) -> None:
    """Join as often as that, and say nothing more."""
    with ExitStack() as links:
        for number in range(count):
            link = links.enter_context(socket.socket(socket.AF_UNIX))
            link.settimeout(pool_process.HANG_S)
            link.connect(path)
            link.sendall(wire.encode(Hello(PROTOCOL, f"idle {number}")))
            assert link.recv(1 << 16)
        pipe.send("joined")
        pipe.recv()


@pytest.mark.slow
@pytest.mark.parametrize("uid", [0, OTHER_UID])
@needs_root
def test_t57_idle_connections_keep_nobody_out(
    place: Path, uid: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """F9: one process with as many idle connections as there are places."""
    work = partial(occupy, str(place / "pool.sock"), ServerLimits().connections_max)
    with (
        open_pool(place, "--allow-uid", str(OTHER_UID)) as pool,
        PatientClient(pool.socket) as before,
    ):
        assert before.join()
        with other_user(work, uid) as pipe:
            assert received(pipe) == "joined"
            with PatientClient(pool.socket) as engine:
                assert engine.store(CHAIN, [chunk.payload for chunk in CHUNKS]).stored == 4
                assert main(["stats", "--json", "--socket", pool.socket]) == 0
                assert '"displaced"' in capsys.readouterr().out
                assert before.lookup(CHAIN) == Known(4, 4), "who was there is there"
            assert pool.number("connections") <= ServerLimits().connections_max


def connections(*peers: tuple[int, int]) -> list[Connection]:
    """One for each (pid, uid), heard of in this order."""
    with socket.socket(socket.AF_UNIX) as link:
        return [Connection(link, Peer(*peer), at, 0) for at, peer in enumerate(peers)]


def test_t57_a_process_has_one_share_though_its_number_is_hidden() -> None:
    """A kernel that tells hidden processes apart gives them negative numbers."""
    processes, budget_bytes = Processes(), 1000
    budget = Budget(lambda: budget_bytes, processes)
    *greedy, honest, unknown = connections(*[(-5, 0)] * 20, (-6, 0), (0, 0))
    assert not unknown.process
    for number, connection in enumerate(greedy):
        processes.join(f"e{number}", connection.process)
    processes.join("honest", honest.process)
    for number in [*range(len(greedy))] * budget_bytes:
        if budget.fits(f"e{number}", 1):
            budget.take(f"e{number}", 1)
    left = next(size for size in range(budget_bytes, 0, -1) if budget.fits("honest", size))
    assert left >= budget_bytes // 5


def test_who_may_say_what() -> None:
    """F8: by the user that the kernel saw, and by the role that was asked for."""
    roles = Roles.of(5, [6], [7])
    own, engine, operator, root, stranger = connections(*((1, uid) for uid in (5, 6, 7, 0, 8)))
    assert roles.refusal_to_connect(stranger.peer.uid)
    for connection in (own, engine, operator, root):
        assert roles.refusal_to_connect(connection.peer.uid) is None
        may_load = connection in (own, engine)
        assert (roles.refusal_to_join(connection, Hello(PROTOCOL, "e")) is None) == may_load
        assert roles.refusal_to_join(connection, Hello(PROTOCOL, "e", is_operator=True)) is None
        for wish in (Clear(None), Resize(0, [])):
            may_operate = connection is not engine
            assert (roles.refusal(connection, wish) is None) == may_operate
        assert roles.refusal(connection, StatsQuery()) is None
        connection.is_operator = True
        assert roles.refusal(connection, Lookup(1, bytes(32), 0, b""))


def test_t57_the_greediest_gives_way_its_longest_silent_connection() -> None:
    found = connections((1, 7), (2, 8), (2, 8), (3, 8), (2, 8))
    assert gives_way(Peer(9, 9), found) is found[1], "of the user, and of its process, with most"
    found[1].heard_at = 9.0
    assert gives_way(Peer(9, 9), found) is found[2]
    assert gives_way(Peer(3, 8), found) is found[2], "of one user likewise"
    assert gives_way(Peer(2, 8), found) is None, "not for one more of its own"
    assert gives_way(Peer(1, 7), found) is found[2]
    assert gives_way(Peer(9, 9), connections((1, 7), (2, 8))) is None, "nobody has too many"
    assert gives_way(Peer(9, 9), []) is None


def test_an_operator_finds_a_place_when_all_are_taken(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F9: even where nobody has to give way, since all are of one process."""
    limits = ServerLimits(connections_max=4, operators_max=2)
    with pool_process.serving(place, limits=limits) as service, ExitStack() as clients:
        path = service.address.path
        for _ in range(4):
            assert clients.enter_context(PatientClient(path)).join()
        with PatientClient(path) as another:
            assert not another.join()
            assert "no place" in another.why
        for _ in range(5):
            idle = clients.enter_context(PatientClient(path))
            idle._session.is_operator = True
            assert idle.join()
        assert main(["stats", "--json", "--socket", path]) == 0
        assert count(json.loads(capsys.readouterr().out), "connections") == 6
