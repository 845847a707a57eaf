"""An engine in a process of its own that takes all that a pool gives, and keeps it.

Run as `python -m tests.greedy_engine (reserve|reserve-as-many|load) SOCKET`. It prints how many
chunks it has once it gets no more; then it does nothing until its input ends.
"""

import os
import sys

from tests import pool_process
from tests.pool_process import PatientClient

from forebay.pool.messages import Ask, Found, Lookup, Promise, Reserve, Reserved

NAMES = 40
CHUNKS = 200  # more than a small pool's DRAM holds
LENGTH = 100_000
KEPT: list[PatientClient] = []


def reserve(client: PatientClient) -> int:
    """Slots that it never fills."""
    _, chain = pool_process.made(f"greedy {os.getpid()} {len(KEPT)}", CHUNKS, LENGTH)
    runs = chain.runs([(position, LENGTH) for position in range(CHUNKS)])
    client._session.post(Reserve(1, runs))
    answer = client._session.take(client._clock.monotonic() + pool_process.HANG_S)
    assert isinstance(answer, Reserved)
    return sum(slot >= 0 for slot in answer.answers)


def reserve_as_many(client: PatientClient) -> int:
    """Likewise, under one name after the other."""
    held, path = reserve(client), client._session._socket_path
    for _ in range(NAMES):
        other = PatientClient(path)
        assert other.join()
        held += reserve(other)
        KEPT.append(other)
    return held


def load(client: PatientClient) -> int:
    """Chunks of `wanted` that it never releases."""
    session, until = client._session, client._clock.monotonic() + pool_process.HANG_S
    _, chain = pool_process.made("wanted", CHUNKS, LENGTH)
    session.post(Lookup(1, chain.namespace, 0, chain.shorts()))
    while not isinstance(answer := session.take(until), Promise):
        if isinstance(answer, Found) and not answer.ready:
            return 0
        if isinstance(answer, Found):
            session.post(Ask(1, 0, CHUNKS, 60_000, stream=False))
    return answer.total


def main() -> None:
    work, socket = sys.argv[1:]
    client = PatientClient(socket)
    assert client.join()
    works = {"reserve": reserve, "reserve-as-many": reserve_as_many, "load": load}
    print(works[work](client), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
