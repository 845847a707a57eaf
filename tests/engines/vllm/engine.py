"""A real vLLM engine in a process of its own, driven by lines of JSON.

Run with the environment that has vLLM: `python -m tests.engines.vllm.engine '{"model": …, …}'`.
Each line on standard input is a command, each line of output its answer; `COMMANDS` has them.
With "inside", engine core and worker run in this very process, so that steps can be counted and the
pool killed at a certain one.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PROCESSOR = Path("/proc/cpuinfo").read_text().split()
# On an ARM processor without it vLLM's kernels for bfloat16 end the process, and those for float16
# take hours.
HAS_BFLOAT16 = "asimd" not in PROCESSOR or "bf16" in PROCESSOR
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Small models gain nothing from two threads, and two that wait for each other lose everything
    # on a machine that is busy otherwise.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def transfer(settings: dict[str, Any]) -> dict[str, Any]:
    """What a user writes into --kv-transfer-config, with a witness where one is wanted."""
    name = "Witness" if "WITNESS_FILE" in os.environ else "ForebayConnector"
    modules = {
        "Witness": "tests.engines.vllm.witness",
        "ForebayConnector": "forebay.engines.vllm.connector",
    }
    return {
        "kv_connector": name,
        "kv_connector_module_path": modules[name],
        "kv_role": "kv_both",
        "kv_connector_extra_config": settings,
    }


class Session:
    """One engine and its commands."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        from vllm import LLM

        more = dict(wanted.get("engine", {}))
        if wanted["pool"] is not None:
            more["kv_transfer_config"] = transfer(wanted["pool"])
        usual = {
            "dtype": "float32",
            "max_model_len": 2048,
            "max_num_seqs": 4,
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "disable_log_stats": False,
        }
        self.engine = LLM(model=wanted["model"], **{**usual, **more}).llm_engine
        self._numbers = 0

    def generate(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """Answer all prompts at once; those with "abort" are given up after so many steps."""
        from vllm import SamplingParams

        told: dict[str, dict[str, Any]] = {}
        aborts: dict[str, int] = {}
        for each in asked["prompts"]:
            self._numbers += 1
            greedy = SamplingParams(
                temperature=0, max_tokens=each.get("answer", asked["answer"]), detokenize=False,
                ignore_eos=True, **each.get("params", {}),
            )  # fmt: skip
            salt = {"cache_salt": each["salt"]} if each.get("salt") else {}
            prompt = {"prompt_token_ids": each["tokens"], **salt}
            request = self.engine.add_request(f"request-{self._numbers}", prompt, greedy)
            external = f"request-{self._numbers}"
            told[external] = {"tokens": [], "cached": 0, "first_step": 0}
            if "abort" in each:
                aborts[external if request is None else request] = each["abort"]
        step = 0
        while self.engine.has_unfinished_requests():
            now = [request for request, at in aborts.items() if at <= step]
            if now:
                self.engine.abort_request(now, internal=True)
            aborts = {request: at for request, at in aborts.items() if at > step}
            step += 1
            for result in self.engine.step():
                answer = told[result.request_id]
                answer["first_step"] = answer["first_step"] or step
                answer["tokens"] = list(result.outputs[0].token_ids)
                answer["cached"] = result.num_cached_tokens or 0
        return list(told.values())

    def settle(self, _asked: dict[str, Any]) -> bool:
        """Step as a serving engine does until nothing is in flight; only inside."""
        core = self.engine.engine_core.engine_core
        until = time.monotonic() + 20
        while core.scheduler.has_requests() or self._connector().has_pending_push_work():
            self.engine.step()
            time.sleep(0.001)
            if time.monotonic() > until:
                return False
        return True

    def look(self, _asked: dict[str, Any]) -> dict[str, Any]:
        """What the scheduler's side holds and has counted; only inside."""
        side = self._connector()._scheduler
        return {
            "counts": dict(side.counts),
            "tracked": len(side._requests),
            "asking": len(side._lookups),
            "copying": len(side._loads) + len(side._stores._copying),
            "failures": self._connector().boundary.failures,
            "is_member": side._pool.is_joined,
        }

    def arm(self, asked: dict[str, Any]) -> bool:
        """Kill a process at the n-th passing of a point; only inside, with a witness."""
        from tests.engines.vllm import witness

        witness.ARMED = witness.Armed(asked["point"], asked["nth"], asked["pid"])
        return True

    def fired(self, _asked: dict[str, Any]) -> bool:
        from tests.engines.vllm import witness

        return witness.ARMED is None

    def preempted(self, _asked: dict[str, Any]) -> int:
        """How often a request was; only inside, with a witness."""
        from tests.engines.vllm import witness

        return witness.PREEMPTED

    def metrics(self, _asked: dict[str, Any]) -> list[str]:
        """Our lines of what vLLM shows on its /metrics page; only inside."""
        from prometheus_client import REGISTRY, generate_latest

        lines = generate_latest(REGISTRY).decode().splitlines()
        return [line for line in lines if line.startswith("forebay:")]

    def version(self, _asked: dict[str, Any]) -> str:
        """Of vLLM, without what it says of its build."""
        import vllm

        return str(vllm.__version__).partition("+")[0]

    def reset(self, _asked: dict[str, Any]) -> bool:
        """As after new weights were pushed into the model."""
        return bool(self.engine.reset_prefix_cache(False, True))

    def push(self, asked: dict[str, Any]) -> bool:
        """New weights, in memory: all of them times a factor; only inside."""
        import torch

        core = self.engine.engine_core.engine_core
        model = core.model_executor.driver_worker.worker.model_runner.model
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(asked["times"])
        return True

    def _connector(self) -> Any:
        return self.engine.engine_core.engine_core.scheduler.connector


COMMANDS = (
    "generate",
    "settle",
    "look",
    "arm",
    "fired",
    "preempted",
    "metrics",
    "version",
    "reset",
    "push",
)


def main() -> None:
    wanted = json.loads(sys.argv[1])
    os.environ.update({**QUIET, **os.environ})
    if wanted.get("inside"):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints as it likes; our answers have a line of their own
    session = Session(wanted)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        assert asked["do"] in COMMANDS
        print(json.dumps(getattr(session, asked["do"])(asked)), file=answers, flush=True)


if __name__ == "__main__":
    main()
