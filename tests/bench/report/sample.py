"""A whole comparison with everything that a report may show, made of the reference's figures."""

from typing import Any

import msgspec
from tests.bench.result.reference import OFF, ON, document

from forebay.bench.result.format import AbResult

BETWEEN = {
    name: [(one + two) / 2 for one, two in zip(OFF[name], ON[name], strict=True)] for name in OFF
}


def side(figures: Any, name: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {**document(figures), "name": name, "model": "a <model> & co", **more}
    for step in found["steps"]:
        ttft = step["ttft_ms"]["mean"]
        step["turns"] = [
            {"turn": turn, "requests": 9, "ttft_ms": {"mean": ttft * (0.5 + turn / 6)}}
            for turn in range(1, 7)
        ]
        step["server"] = {"running_mean": 3.0, "waiting_mean": 0.5, "kv_use_max": 0.9}
    return found


def sample() -> AbResult:
    pool = {
        "stored_chunks": 100,
        "stored_bytes": 100 << 20,
        "read_dram_chunks": 70,
        "read_dram_bytes": 70 << 20,
        "dram_bytes": 90 << 20,
        "nvme_bytes": 80 << 20,
    }
    on = side(
        ON, "with a tier", commands=["forebay bench ab m --dram 1TiB"], versions={"vllm": "1"}
    )
    for step in on["steps"]:
        step["pool"] = pool
    on["workload"] = {"name": "dialog", "turns": 6}
    on["machine"] = {"cpu": "some", "cores": 2, "memory_bytes": 1 << 34, "system": "Linux"}
    off = side(OFF, "GPU only", ended="the SLA was long broken", commands=["vllm serve m"])
    off["steps"][-1] |= {"errors": 3, "requests": 900, "errors_by_kind": {"http_429": 3}}
    run = {"sides": ["off", "on"], "results": {"off": off, "on": on}}
    whole = {
        "off": off,
        "on": on,
        "others": [side(BETWEEN, "another")],
        "equal": {"answers": 200, "equal": 198},
        "stateless": {
            "off": {"steps": off["steps"][:1]},
            "on": {"steps": on["steps"][:1]},
        },
        "pool": pool,
        "repeats": [run, {**run, "sides": ["on", "off"]}],
    }
    return msgspec.convert(whole, AbResult)
