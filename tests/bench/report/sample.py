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
    found["sla"] = {"tpot_ms": 50.0, "ttft_ms": None, "at": "mean"}
    for step in found["steps"]:
        ttft = step["ttft_ms"]["mean"]
        step["turns"] = [
            {"turn": turn, "requests": 9, "ttft_ms": {"mean": ttft * (0.5 + turn / 6)}}
            for turn in range(1, 7)
        ]
        for time, mean in (("ttft_ms", ttft), ("tpot_ms", step["tpot_ms"]["mean"])):
            step[time] = {"mean": mean, "p50": 0.9 * mean, "p95": 2 * mean, "p99": 3 * mean}
        step["e2e_ms"] = {"mean": 9 * ttft, "p50": 8 * ttft, "p95": 20 * ttft, "p99": 30 * ttft}
        step |= {"requests": 1000, "seconds": 1000 / step["req_s"], "output_tok_s": 99.0}
        step["within"] = 1000 if step["tpot_ms"]["mean"] <= 50 else 250
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
        "outcomes": {"unknown": 7, "loaded": 90, "disk: corrupt": 1, "too_little": 20},
    }
    samples = [
        {"at_s": at_s, "stored_bytes": at_s * 10**9, "read_dram_bytes": at_s * 2 * 10**9}
        for at_s in range(4)
    ]
    on = side(
        ON, "with a tier", commands=["forebay bench ab m --dram 1TiB"], versions={"vllm": "1"}
    )
    for step in on["steps"]:
        step |= {"pool": pool, "pool_samples": samples}
    on["workload"] = {"name": "dialog", "turns": 6}
    on["machine"] = {"cpu": "some", "cores": 2, "memory_bytes": 1 << 34, "system": "Linux"}
    off = side(OFF, "GPU only", ended="the SLA was long broken", commands=["vllm serve m"])
    off["steps"][-1] |= {"errors": 3, "requests": 900, "errors_by_kind": {"http_429": 3}}
    run = {"sides": ["off", "on"], "results": {"off": off, "on": on}}
    slower = {**on, "steps": [{**step, "req_s": 0.8 * step["req_s"]} for step in on["steps"]]}
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
        "repeats": [run, {"sides": ["on", "off"], "results": {"off": off, "on": slower}}],
        "gpus": 8,
        "gpu_hour_price": 3.0,
    }
    return msgspec.convert(whole, AbResult)
