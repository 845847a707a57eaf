"""What engines have told a real pool of themselves and of their requests, as the doctor sees it."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.observe.doctor.harness import facts_of, finds, is_fine
from tests.pool_process import (
    HANG_S,
    SMALL,
    PatientClient,
    chain_of,
    serving,
    short_directory,
    wait_until,
)

from forebay.observe.doctor.facts import Facts
from forebay.observe.doctor.finding import Severity
from forebay.pool.client.chain import Chain
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import Describe, Lookup, Outcome, RequestOutcomes
from forebay.pool.service import Service
from forebay.sys.clock import Clock
from forebay.testing import samples

NAMESPACES = (b"a" * 32, b"b" * 32)
UNKNOWN = Outcome("r", "unknown", "", 0, 700, 0, 0, [0, 0], 700, 0.1, 2.0, 0.0, 0.0, False)


@pytest.fixture
def served() -> Iterator[tuple[Path, Service]]:
    with short_directory() as place, serving(place, SMALL) as service:
        yield place, service


@contextmanager
def engine(service: Service, **told: Any) -> Iterator[PoolSession]:
    """An engine that has told the pool what it is."""
    session = PoolSession(service.address.path, Clock(), maps_slab=False)
    assert session.wait_until_joined(time.monotonic() + HANG_S)
    description = Describe("m", "vLLM 0.32.0", "sharing", "", NAMESPACES[0], 64)
    session.post(msgspec.structs.replace(description, **told))
    yield session
    session.close()


def once(place: Path, is_so: Any) -> Facts:
    """Facts from when the pool has heard it."""
    found: list[Facts] = []

    def look() -> bool:
        found[:] = [facts_of(place)]
        return bool(is_so(found[0].pool))

    wait_until(look, "the pool to hear of it")
    return found[0]


def test_engines_tell_whether_they_share(served: tuple[Path, Service]) -> None:
    place, service = served
    with ExitStack() as stack:
        stack.enter_context(engine(service))
        facts = once(place, lambda pool: [e["model"] for e in pool.listed("engines")] == ["m"])
        is_fine("pool.engines", facts)
        is_fine("sharing.vllm", facts)
        why = "pooling models are not supported"
        stack.enter_context(engine(service, sharing="declined", why=why))
        facts = once(place, lambda pool: any(e["why"] for e in pool.listed("engines")))
        finds("pool.engines", facts, Severity.WARNING, "vLLM 0.32.0 with m", why)
        stack.enter_context(engine(service, engine="vLLM 0.99.0"))
        facts = once(place, lambda pool: "0.99" in str(pool.listed("engines")))
        finds("sharing.vllm", facts, Severity.WARNING, "vLLM 0.99.0")


def test_dram_is_compared_with_what_the_engines_gpus_hold(served: tuple[Path, Service]) -> None:
    place, service = served
    with ExitStack() as stack:
        stack.enter_context(engine(service, gpu_cache_bytes=1 << 20))
        facts = once(place, lambda pool: any(e["gpu_cache_bytes"] for e in pool.listed("engines")))
        is_fine("memory.gpu_cache", facts)
        stack.enter_context(engine(service, gpu_cache_bytes=1 << 40))
        facts = once(place, lambda pool: str(1 << 40) in str(pool.listed("engines")))
        finds("memory.gpu_cache", facts, Severity.WARNING, "1 TiB", "several times")


def test_a_model_that_is_stored_in_two_namespaces(served: tuple[Path, Service]) -> None:
    place, service = served
    with ExitStack() as stack, PatientClient(service.address.path) as client:
        for number, namespace in enumerate(NAMESPACES):
            session = stack.enter_context(engine(service, namespace=namespace))
            session.post(Lookup(1, namespace, 0, b""))  # an engine names what it uses
            once(place, lambda pool, n=number: len(pool.listed("engines")) > n)
            chunks = samples.chain(f"model of namespace {number}", [4096])
            chain = Chain(namespace, chain_of(chunks).keys)
            client.store(chain, [chunks[0].payload])
            facts = once(
                place,
                lambda pool, n=number: (
                    sum(e["model"] == "m" for e in pool.listed("namespaces")) == n + 1
                ),
            )
            if not number:
                is_fine("sharing.namespaces", facts)
        finds("sharing.namespaces", facts, Severity.NOTE, "m has chunks in 2 namespaces")


def test_requests_of_many_salts(served: tuple[Path, Service]) -> None:
    place, service = served
    with engine(service) as session:
        for decision, total in (("loaded", 20), ("other_salt", 40)):
            outcome = msgspec.structs.replace(UNKNOWN, decision=decision)
            session.post(RequestOutcomes([outcome] * 20))
            facts = once(place, lambda pool, n=total: pool.counted("requests") == n)
            if decision == "loaded":
                is_fine("sharing.salts", facts)
        finds("sharing.salts", facts, Severity.WARNING, "Of 40 requests, 20", "cache_salt")
