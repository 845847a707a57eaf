"""What vLLM is told of where a load's tokens lie, while most of it has yet to be brought."""

from dataclasses import replace

import pytest
from tests.engines.vllm.test_scheduler_side import LIMITS, asked, request_of
from tests.pool_process import PatientClient, PoolProcess, running_pool, short_directory

from forebay.engines.geometry import Geometry
from forebay.engines.vllm.scheduler import SchedulerConnector
from forebay.identity.keys import ChainRoot, KeyChain
from forebay.pool.client import Chain
from forebay.pool.client.session import PoolSession
from forebay.sys.clock import Clock

pytestmark = pytest.mark.vllm
SHAPE = Geometry(("layer",), page_bytes=64 << 10, block_tokens=16, chunk_blocks=4)
ROOT = ChainRoot(b"n" * 32, SHAPE.chunk_tokens)
CHUNKS = 48  # three quarters of the pool's DRAM: more than it promises at once
TOKENS = CHUNKS * SHAPE.chunk_tokens


def told_of_a_stream(pool: PoolProcess) -> dict[str, int]:
    limits = replace(LIMITS, may_fail=True)
    side = SchedulerConnector(PoolSession(pool.socket, Clock(), maps_slab=False), SHAPE, limits)
    side.join()
    side.root = ROOT
    try:
        request = request_of(list(range(TOKENS + 1)))
        side.arrived(request)
        assert asked(side, request, 0) == TOKENS
        promise = side._requests["request"].load.promise
        assert promise is not None
        assert len(promise.offsets) < promise.total == CHUNKS, "a stream"
        side.allocated(request, [list(range(CHUNKS * SHAPE.chunk_blocks))], TOKENS)
        return dict(side.hit_sources(request))
    finally:
        side.close()


def fill(pool: PoolProcess) -> None:
    keys = KeyChain(ROOT).extend(list(range(TOKENS)))
    payloads = [bytes([number]) * SHAPE.chunk_bytes for number in range(CHUNKS)]
    with PatientClient(pool.socket) as client:
        assert client.store(Chain(ROOT.namespace, keys), payloads).stored == CHUNKS


def test_a_stream_from_disk_is_from_disk() -> None:
    with short_directory() as place, running_pool(place) as pool:
        fill(pool)
        pool.stop()  # writes what it holds
        pool.start()
        assert told_of_a_stream(pool) == {"disk": TOKENS}


def test_a_stream_from_dram_is_from_dram() -> None:
    with short_directory() as place, running_pool(place, disk=False) as pool:
        fill(pool)
        assert told_of_a_stream(pool) == {"dram": TOKENS}
