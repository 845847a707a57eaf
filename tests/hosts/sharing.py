"""What tests do with pools of two hosts: share chains, and look for them."""

import itertools
import time
from collections.abc import Callable
from typing import Final

from tests.pool_process import PatientClient, PoolProcess, count_exact, made

from forebay.metrics import reading
from forebay.tiers.contract import Miss

CHUNKS: Final = 4  # of each chain
REUSES: Final = 2  # of a chain, so that it is worth sending
PATIENCE_S: Final = 600.0  # a guard against hanging: another host finds a chunk within 20 s
_LOOK_S: Final = 0.2  # between two looks at what takes seconds


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Look a few times a second until something is so."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until, f"waited {PATIENCE_S} s for {what}"
        time.sleep(_LOOK_S)


def store(pool: PoolProcess, label: str) -> None:
    """Store a chain and use it again."""
    chunks, chain = made(label, CHUNKS)
    with PatientClient(pool.socket) as client:
        receipt = client.store(chain, [chunk.payload for chunk in chunks], timeout_s=PATIENCE_S)
        assert receipt.stored + receipt.had == CHUNKS
    for _ in range(REUSES):
        assert load(pool, label) == CHUNKS


def load(pool: PoolProcess, label: str) -> int:
    """How many chunks of a chain come; each bit for bit, or the test has failed."""
    chunks, chain = made(label, CHUNKS)
    with (
        PatientClient(pool.socket) as client,
        client.load(chain, timeout_s=PATIENCE_S) as loaded,
    ):
        return count_exact(loaded, chunks)


def sent_chunks(pool: PoolProcess) -> int:
    """How many chunks of a pool are in the store."""
    return int(reading.tier_of(pool.stats(), "remote")["chunks"])


def dropped_chunks(pool: PoolProcess) -> int:
    """How many chunks were not stored there."""
    stored = pool.number("operations", tier="remote", direction="store", outcome="ok")
    return pool.number("operations", tier="remote", direction="store") - stored


def failures(pool: PoolProcess) -> int:
    """How many calls of the store have failed."""
    return int(reading.tier_of(pool.stats(), "remote")["volumes"][0]["errors"])


def wait_for_use(pool: PoolProcess) -> None:
    """Until the store has answered."""

    def is_on() -> bool:
        return bool(reading.tier_of(pool.stats(), "remote")["volumes"][0]["is_on"])

    wait_until(is_on, f"the store; {pool.log.read_text()}")


def wait_for_sent(pool: PoolProcess, chunks: int) -> None:
    """Until so many chunks of a pool are in the store."""
    wait_until(lambda: sent_chunks(pool) >= chunks, "chunks in the store")


def wait_for_found(pool: PoolProcess, label: str) -> None:
    """Until a pool knows of a whole chain."""
    _, chain = made(label, CHUNKS)
    with PatientClient(pool.socket) as client:

        def is_found() -> bool:
            known = client.lookup(chain, timeout_s=PATIENCE_S)
            return not isinstance(known, Miss) and known.chunks == CHUNKS

        wait_until(is_found, f"{label} on the other host")


def send(pool: PoolProcess, label: str) -> str:
    """Store a chain, and another one until one of them is in the store; its label.

    What is stored while the store is left alone is dropped.
    """
    until = time.monotonic() + PATIENCE_S
    for attempt in itertools.count():
        tried = f"{label}, {attempt}"
        wanted, dropped = sent_chunks(pool) + CHUNKS, dropped_chunks(pool)
        store(pool, tried)
        wait_until(
            lambda: sent_chunks(pool) >= wanted or dropped_chunks(pool) > dropped,  # noqa: B023
            "chunks in the store",
        )
        if sent_chunks(pool) >= wanted:
            return tried
        assert time.monotonic() < until, "everything is dropped"
        time.sleep(_LOOK_S)
    raise AssertionError


def share(source: PoolProcess, target: PoolProcess, *labels: str) -> list[str]:
    """Store chains on one host until the other knows all of them, and has read none; their labels.

    A lookup reads ahead. So what is looked up is a chain that is stored after all others are in the
    store: whoever knows of it knows of them.
    """
    *sent, last = [send(source, label) for label in (*labels, f"after {labels}")]
    wait_for_found(target, last)
    return sent
