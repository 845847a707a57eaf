"""What the connector costs the engine: `make bench-hooks`.

Real vLLM in this process, a real pool beside it. Prints, for prompts of 5,000 and of 100,000
tokens, the thread CPU time and the wall time of every call of a scheduler's hook; then, on the demo
model with prompts that nobody sends twice, the CPU seconds of pool and connector over the engine's.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOOKS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
    "has_pending_push_work",
    "get_kv_connector_stats",
)
WORKER_HOOKS = (
    "handle_preemptions",
    "start_load_kv",
    "get_finished",
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "build_connector_worker_meta",
)


class Watch:
    """Times every call of some methods of an object."""

    def __init__(self) -> None:
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self.wall: dict[str, list[float]] = defaultdict(list)

    def over(self, target: Any, names: tuple[str, ...]) -> None:
        for name in names:
            if hasattr(target, name):
                setattr(target, name, self._timed(name, getattr(target, name)))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return method(*arguments, **named)
            finally:
                self.cpu[name].append(time.thread_time() - cpu)
                self.wall[name].append(time.perf_counter() - wall)

        return call

    def clear(self) -> None:
        self.cpu.clear()
        self.wall.clear()

    def summary(self) -> dict[str, dict[str, float]]:
        return {
            name: {
                "calls": len(cpu),
                "cpu_p50_ms": at(cpu, 0.5),
                "cpu_p99_ms": at(cpu, 0.99),
                "cpu_max_ms": at(cpu, 1.0),
                "wall_p99_ms": at(self.wall[name], 0.99),
                "wall_max_ms": at(self.wall[name], 1.0),
            }
            for name, cpu in self.cpu.items()
        }


def at(seconds: list[float], share: float) -> float:
    """A percentile in milliseconds."""
    ordered = sorted(seconds)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 4)


def tiny_model(place: Path) -> str:
    """One layer: what is measured is not the model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1024, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        max_position_embeddings=131_072, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(place)
    return str(place)


class Measured:
    """An engine in this process and a pool in another."""

    def __init__(self, model: str, place: Path, *, context: int, kv_bytes: int) -> None:
        from vllm import LLM

        socket, disk = place / "pool.sock", place / "disk"
        disk.mkdir(mode=0o700)
        flags = ["--socket", str(socket), "--dram", "2GiB", "--disk", f"{disk}:2GiB"]
        self.pool = subprocess.Popen([sys.executable, "-m", "forebay.cli", "pool", *flags])
        while not socket.exists():
            time.sleep(0.05)
        transfer = {
            "kv_connector": "ForebayConnector",
            "kv_connector_module_path": "forebay.engines.vllm.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"socket": str(socket)},
        }
        self.engine = LLM(
            model=model, max_model_len=context, max_num_seqs=4, kv_cache_memory_bytes=kv_bytes,
            enforce_eager=True, skip_tokenizer_init=True, disable_log_stats=False,
            kv_transfer_config=transfer,
        ).llm_engine  # fmt: skip
        core = self.engine.engine_core.engine_core
        self.connector = core.scheduler.connector
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.scheduler, self.worker = Watch(), Watch()
        self.scheduler.over(self.connector, HOOKS)
        self.worker.over(get_kv_transfer_group(), WORKER_HOOKS)
        while self.connector._scheduler.root is None:
            self.answer([[1] * 300], 1)
            time.sleep(0.1)

    def answer(self, prompts: list[list[int]], tokens: int) -> int:
        """Answer; how many tokens of the prompts came from a cache."""
        from vllm import SamplingParams

        greedy = SamplingParams(temperature=0, max_tokens=tokens, detokenize=False, ignore_eos=True)
        for prompt in prompts:
            name = f"request-{random.getrandbits(60)}"
            self.engine.add_request(name, {"prompt_token_ids": prompt}, greedy)
        cached = 0
        while self.engine.has_unfinished_requests():
            for result in self.engine.step():
                if result.finished:
                    cached += result.num_cached_tokens or 0
        return cached

    def cpu_seconds(self) -> tuple[float, float, float]:
        """Of the pool, of the connector's hooks, of the engine with them."""
        fields = Path(f"/proc/{self.pool.pid}/stat").read_text().rpartition(")")[2].split()
        pool = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        hooks = sum(sum(each) for w in (self.scheduler, self.worker) for each in w.cpu.values())
        return pool, hooks, time.process_time()

    def end(self) -> None:
        self.pool.terminate()
        self.pool.wait()


def prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(1, vocabulary) for _ in range(length)] for _ in range(count)]


def hook_times() -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fb-") as place:
        model = tiny_model(Path(place) / "model")
        # Room for one long prompt, so that those before it must come back from the pool.
        under = Measured(model, Path(place), context=110_000, kv_bytes=30 << 20)
        for length, count in ((5_000, 24), (100_000, 2)):
            under.scheduler.clear()
            asked = prompts(count, length, 1024, length)
            for batch in range(0, count, 4):
                under.answer(asked[batch : batch + 4], 8)
            cached = sum(under.answer(asked[at : at + 4], 8) for at in range(0, count, 4))
            found[str(length)] = {
                "returning_share_cached": round(cached / (count * length), 3),
                "hooks": under.scheduler.summary(),
                "asked_again": {
                    k: v for k, v in under.connector._scheduler.counts.items() if "again" in k
                },
            }
        under.end()
    return found


def cpu_share() -> dict[str, Any]:
    from forebay.engines.start import demo_model

    with tempfile.TemporaryDirectory(prefix="fb-") as place:
        under = Measured(demo_model.prepare(), Path(place), context=8192, kv_bytes=256 << 20)
        under.answer(prompts(1, 600, 40_000, 0), 4)
        before = under.cpu_seconds()
        for number in range(6):
            under.answer(prompts(2, 1500, 40_000, 10 + number), 32)
        pool, hooks, whole = (b - a for a, b in zip(before, under.cpu_seconds(), strict=True))
        stored = under.connector._scheduler.counts["stored.chunks"]
        under.end()
    return {
        "pool_cpu_s": round(pool, 3),
        "connector_cpu_s": round(hooks, 3),
        "engine_cpu_s": round(whole - hooks, 3),
        "share": round((pool + hooks) / (whole - hooks), 4),
        "stored_chunks": stored,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.add_argument("part", nargs="?", choices=["hooks", "share"], help="one of the two")
    parsed = parser.parse_args()
    os.environ.update(
        HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_CI_ENV="1",
        VLLM_LOGGING_LEVEL="ERROR", VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )  # fmt: skip
    if parsed.part is None:  # an engine each, and an engine fills its process
        own = [sys.executable, __file__, *(["--json"] if parsed.json else [])]
        sys.exit(max(subprocess.call([*own, part]) for part in ("hooks", "share")))
    found = hook_times() if parsed.part == "hooks" else cpu_share()
    if parsed.json:
        print(json.dumps(found))
    elif parsed.part == "share":
        print("\nnothing to reuse, demo model:", json.dumps(found, indent=1))
    else:
        for length, figures in found.items():
            print(f"\nprompts of {length} tokens, {figures['returning_share_cached']:.0%} cached")
            for hook, each in figures["hooks"].items():
                print(f"  {hook:30}", "  ".join(f"{k} {v}" for k, v in each.items()))


if __name__ == "__main__":
    main()
