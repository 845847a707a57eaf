"""What a real pool counted, span by span and second by second, and why requests loaded nothing."""

import asyncio
import time

import msgspec
from tests.pool_process import HANG_S, PatientClient, made, serving, short_directory, wait_until

from forebay.bench.ab.counters import Counters, together
from forebay.bench.load.steps import NO_POOL, sampled
from forebay.bench.report.counted import outcomes
from forebay.bench.result.format import PoolFigures
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import Describe, Outcome, RequestOutcomes
from forebay.sys.clock import Clock

TOLD = Outcome("r", "unknown", "", 0, 700, 64, 0, [0, 0], 636, 0.1, 2.0, 0.0, 0.0, False)


def test_requests_are_counted_by_their_outcome_and_bytes_as_they_move() -> None:
    chunks, chain = made("counted", 4, 4000)
    with short_directory() as place, serving(place) as service:
        engine = PoolSession(service.address.path, Clock(), maps_slab=False)
        assert engine.wait_until_joined(time.monotonic() + HANG_S)
        with (
            PatientClient(service.address.path) as watch,
            PatientClient(service.address.path) as client,
        ):
            counters = Counters(watch)
            counters()
            engine.post(Describe("m", "vLLM 0.32.0", "sharing", "", chain.namespace, 64))
            client.store(chain, [chunk.payload for chunk in chunks])
            told = [msgspec.structs.replace(TOLD, decision=why) for why in ("unknown", "short")]
            engine.post(RequestOutcomes([*told, told[0]]))

            def so_far() -> PoolFigures:
                found = counters.so_far()
                assert found is not None
                return found

            wait_until(lambda: so_far().outcomes.get("short") == 1, "the requests")
            stored = so_far()
            assert stored.outcomes == {"unknown": 2, "short": 1}
            assert stored.stored_bytes == 4 * 4000
            span = counters()
            assert span is not None
            assert (span.outcomes, span.stored_bytes) == (stored.outcomes, stored.stored_bytes)
            assert so_far().outcomes == {}, "a new span"
            assert so_far().stored_bytes == 0
            whole = together([span, span])
            assert whole is not None
            assert whole.outcomes == {"unknown": 4, "short": 2}
            (section,) = outcomes(whole)
            assert section.table is not None
            assert [row[0] for row in section.table.rows] == ["unknown", "short"]
        engine.close()


def test_samples_have_the_beginning_and_the_end_of_a_step() -> None:
    chunks, chain = made("sampled", 4, 4000)
    with (
        short_directory() as place,
        serving(place) as service,
        PatientClient(service.address.path) as watch,
        PatientClient(service.address.path) as client,
    ):
        counters = Counters(watch)
        counters()

        async def step() -> list[int]:
            async with sampled(counters) as samples:
                await asyncio.to_thread(wait_until, lambda: bool(samples), "a first sample")
                payloads = [chunk.payload for chunk in chunks]
                await asyncio.to_thread(client.store, chain, payloads)
            return [sample.stored_bytes for sample in samples]

        found = asyncio.run(step())
    assert (found[0], found[-1]) == (0, 4 * 4000)


def test_without_a_pool_there_are_no_samples() -> None:
    async def step() -> int:
        async with sampled(NO_POOL) as samples:
            pass
        return len(samples)

    assert asyncio.run(step()) == 0
    assert list(outcomes(PoolFigures())) == []
