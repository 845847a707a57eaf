"""Requests with images and adapters at the scheduler's side: vLLM's own objects, and no engine."""

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engines.test_adapters import adapter
from tests.engines.vllm.test_scheduler_side import LIMITS, ROOT, SHAPE, Output
from tests.pool_process import PoolProcess, running_pool, short_directory, wait_until

from forebay.engines.vllm import inputs, scheduler
from forebay.engines.vllm.inputs import Inputs
from forebay.engines.vllm.scheduler import SchedulerConnector
from forebay.pool.client.session import PoolSession
from forebay.sys.clock import Clock

pytestmark = pytest.mark.vllm
TOKENS = [5] * (SHAPE.chunk_tokens + 1)


@pytest.fixture
def pool() -> Iterator[PoolProcess]:
    with short_directory() as place, running_pool(place, disk=False) as pool:
        yield pool


@pytest.fixture
def side(
    pool: PoolProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SchedulerConnector]:
    """Of an engine with adapters and images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(inputs, "_HASH_S", 100.0)
    config = SimpleNamespace(
        lora_config=SimpleNamespace(lora_dtype="float32"),
        model_config=SimpleNamespace(multimodal_config=SimpleNamespace(mm_processor_cache_gb=4)),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
    )
    session = PoolSession(pool.socket, Clock(), maps_slab=False)
    keyed = Inputs(config, SHAPE.chunk_tokens)
    made = SchedulerConnector(session, SHAPE, LIMITS, keyed)
    made.join()
    made.root = ROOT
    yield made
    made.close()


def request_of(name: str, **more: Any) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    return Request(name, list(TOKENS), SamplingParams(max_tokens=1), None, **more)


def image(value: int, identifier: str = "image") -> list[Any]:
    import torch
    from vllm.multimodal.inputs import (
        MultiModalFeatureSpec,
        MultiModalKwargsItem,
        PlaceholderRange,
    )

    item = MultiModalKwargsItem.dummy(64)
    item["dummy"].data = torch.full((4, 4), value, dtype=torch.bfloat16).T
    return [MultiModalFeatureSpec(item, "image", identifier, PlaceholderRange(offset=2, length=8))]


def keys_of(side: SchedulerConnector, request: Any) -> list[bytes]:
    """Of a request that has arrived, as soon as its inputs are hashed."""

    def is_tracked() -> bool:
        side.matched(request, 0)
        side.begin_step(Output)
        return request.request_id in side._requests

    wait_until(is_tracked, "the hash")
    return side._requests[request.request_id].keys


def test_t10_images_of_vllm_are_hashed_by_what_they_hold(side: SchedulerConnector) -> None:
    found = {}
    for name, value in {"a": 1, "b": 2, "again": 1}.items():
        request = request_of(name, mm_features=image(value, name))
        side.arrived(request)
        found[name] = keys_of(side, request)
    assert found["a"] == found["again"] != found["b"]
    assert not side._inputs._jobs.keys() - {"again"}, "nothing is kept of what is known"


def test_the_thread_that_hashes_gets_the_interpreter(
    side: SchedulerConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, hash_now = threading.Event(), inputs._hash_inputs

    def hash_later(*arguments: Any) -> Any:
        assert goes_on.wait(60)
        return hash_now(*arguments)

    def wait_long(futures: Any, timeout_s: float) -> Any:
        assert 0 < timeout_s <= scheduler._HASH_WAIT_S
        goes_on.set()
        return wait(futures, 60)

    monkeypatch.setattr(inputs, "_hash_inputs", hash_later)
    monkeypatch.setattr(inputs, "wait", wait_long)
    first, second = (request_of(name, mm_features=image(1)) for name in ("first", "second"))
    side.arrived(first)
    side.matched(first, 0)
    assert "first" in side._requests, "hashed by the first ask"
    goes_on.clear()
    side.arrived(second)
    side._wait_left_s = 0.0
    side.matched(second, 0)
    assert "second" not in side._requests, "this step has waited enough"
    goes_on.set()


def test_a_request_is_put_off_while_its_image_is_hashed(
    side: SchedulerConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, hash_now = threading.Event(), inputs._hash_inputs

    def hash_later(*arguments: Any) -> Any:
        goes_on.wait(60)
        return hash_now(*arguments)

    monkeypatch.setattr(inputs, "_hash_inputs", hash_later)
    waits, ends = (request_of(name, mm_features=image(1)) for name in ("waits", "ends"))
    for request in (waits, ends):
        side.arrived(request)
        assert side.matched(request, 0) == (None, False)
    assert side.counts["asked_again.hashing"] == 2
    side.finished("ends")
    assert side._unidentified == {"waits"}
    goes_on.set()
    assert keys_of(side, waits)
    assert not side._unidentified
    side.finished("waits")
    side.begin_step(Output)
    assert not side._inputs._jobs


def test_t53_what_is_computed_after_its_adapter_changed_is_not_stored(
    side: SchedulerConnector, tmp_path: Path
) -> None:
    from vllm.lora.request import LoRARequest

    path = adapter(tmp_path / "adapter")
    named = LoRARequest("adapter", 1, path)
    numbers = iter(range(1000))

    def is_known() -> bool:
        request = request_of(f"request {next(numbers)}", lora_request=named)
        side.arrived(request)
        side.begin_step(Output)
        return side._requests[request.request_id].store.is_wanted

    wait_until(is_known, "the adapter's hash")
    assert side.counts["declined.adapter_hashing"] >= 1
    plain = request_of("plain")
    side.arrived(plain)
    tracked = [each for each in side._requests.values() if each.store.is_wanted]
    assert len(tracked) == 2
    Path(path, "adapter_model.safetensors").write_bytes(b"others")
    wait_until(
        lambda: side.begin_step(Output) and not tracked[0].store.is_wanted, "the change to be seen"
    )
    assert side._requests["plain"].store.is_wanted, "it has no adapter"
    late = request_of("late", lora_request=named)
    side.arrived(late)
    assert side.counts["declined.adapter_unknown"] == 1
    assert side.matched(late, 0) == (0, False)
