"""What an engine says of itself while it has nothing to compute, and why it shares nothing."""

from pathlib import Path
from typing import Any

from tests.engines.vllm.test_config import (
    caches,
    config,
    connector,
    declined_caches,
    full,
    place,
)
from tests.pool_process import running_pool, wait_until

__all__ = ["config", "place"]  # fixtures


def test_an_idle_engine_joins_a_pool_that_was_restarted(config: Any, place: Path) -> None:
    """No hook is called; its next request finds what the pool has."""
    cache = caches(full())
    with running_pool(place) as pool:
        made = connector(config, cache, socket=pool.socket, weights_id="a")
        pool.kill()
        pool.start()
        wait_until(lambda: pool.number("engines", sharing="sharing") == 1, "the engine")
        assert made._scheduler.is_joined
        made.shutdown()
        wait_until(lambda: not pool.number("engines"), "its end")


def test_the_pool_hears_how_much_the_gpu_holds(config: Any, place: Path) -> None:
    cache = caches(full())
    size_bytes = cache.num_blocks * full().page_size_bytes

    def told() -> list[int]:
        return [engine["gpu_cache_bytes"] for engine in pool.stats()["engines"]]

    with running_pool(place) as pool:
        made = connector(config, cache, socket=pool.socket, weights_id="a")
        wait_until(lambda: told() == [size_bytes], "the description")
        made.shutdown()


def test_a_gauge_says_why_an_engine_is_declined(config: Any, place: Path) -> None:
    from prometheus_client import REGISTRY, Counter, Gauge, Histogram

    made = connector(config, declined_caches()["window"], socket=str(place / "nobody"))
    shown = type(made).build_prom_metrics(
        config,
        {Counter: Counter, Gauge: Gauge, Histogram: Histogram},
        ["engine"],
        {0: ["0"]},
    )
    shown.observe(made.get_kv_connector_stats().data)

    def gauge(name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(name, {"engine": "0", **labels})

    assert gauge("forebay:not_sharing", reason="local attention alone") == 1
    assert gauge("forebay:sharing", state="declined") == 1
    made.shutdown()
