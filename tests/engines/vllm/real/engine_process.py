"""The child process of an engine: a real vLLM engine that does what its pipe says.

Each message is the name of a command and its arguments; a public method of `Commands` has its
name, and what that returns is the reply. The engine ends with the pipe.
"""

import ctypes
import json
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

CLONE_NEWNET = 0x40000000  # as the kernel names it; Python has it from 3.12 on
SETTLE_S = 300.0  # a guard against hanging
PAUSE_TOKENS = 8  # of each answer, before a pause
LOUD = 12  # in place of KV: far from it
STEP_WAIT_S = "TEST_STEP_WAIT_S"  # a variable: for how long a step waits for the pool
# Ends the name of a file beside the recorded pages: rank, point, and "die", "spoil" or seconds.
DISTURBED = ".disturbed"


def run(pipe: Connection, wanted: dict[str, Any]) -> None:
    os.setsid()  # killed with all that it starts
    if wanted["log"] is not None:
        os.dup2(os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.dup2(2, 1)
    os.environ.update(wanted["variables"])
    if wanted["network"] is not None:
        enter_network(wanted["network"])
    commands = Commands(wanted)
    pipe.send("ready")
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            os._exit(0)  # the test is over, and vLLM takes seconds to end in order
        pipe.send(getattr(commands, name)(**arguments))


def be_patient() -> None:
    """Have the limits that the environment names, in an engine's core process as well.

    That one is spawned, not forked: the connector that records pages calls this when it is there.
    """
    from forebay.engines.scheduling import stores
    from forebay.engines.vllm import inputs, scheduler

    step_wait_s = float(os.environ[STEP_WAIT_S])
    patch.object(scheduler, "_STEP_WAIT_S", step_wait_s).start()
    patch.object(stores, "_ANSWER_S", max(stores._ANSWER_S, step_wait_s)).start()
    patch.object(inputs, "_HASH_S", SETTLE_S).start()


def enter_network(process: int) -> None:
    """Have the network of another process, as all threads that begin from now on do."""
    with Path(f"/proc/{process}/ns/net").open("rb") as network:
        failed = ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET)
    assert not failed, os.strerror(ctypes.get_errno())


def transfer_config(settings: dict[str, Any], *, is_recorded: bool) -> dict[str, Any]:
    """What a user writes into --kv-transfer-config, or the connector that records pages."""
    name, module = "ForebayConnector", "forebay.engines.vllm.connector"
    if is_recorded:
        name, module = "RecordingConnector", "tests.engines.vllm.real.recording_connector"
    return {
        "kv_connector": name,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_connector_extra_config": settings,
    }


def know_architecture(model: str) -> None:
    """Tell vLLM what the model's class can do; else it starts a process of its own to find out."""
    from vllm import ModelRegistry

    config = json.loads((Path(model) / "config.json").read_text())
    for name in config["architectures"]:
        ModelRegistry.register_model(name, ModelRegistry.models[name].load_model_cls())


def lora_of(wanted: dict[str, Any]) -> Any:
    """The adapter of a request: a number, a path, and whatever else."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", wanted["number"], wanted["path"], **wanted.get("more", {}))


def media_of(each: dict[str, Any]) -> dict[str, Any]:
    """The images of a prompt, each of one colour and a pixel of another; and their names."""
    if "images" not in each:
        return {}
    from PIL import Image

    made = []
    for colour in each["images"]:
        image = Image.new("RGB", (56, 56), colour)
        image.putpixel((20, 30), (255, 255, 255))
        made.append(image)
    names = {"multi_modal_uuids": {"image": each["names"]}} if "names" in each else {}
    return {"multi_modal_data": {"image": made}, **names}


def scale(worker: Any, factor: float) -> None:
    """In a rank's process: all weights of the model times a factor."""
    import torch

    with torch.no_grad():
        for weight in worker.model_runner.model.parameters():
            weight.mul_(factor)


def ruin(worker: Any) -> None:
    """In a rank's process: its KV memory holds something else, as what was given back may do."""
    for each in worker.model_runner.kv_caches:
        for tensor in each if isinstance(each, list | tuple) else [each]:
            tensor.fill_(LOUD)


class Commands:
    """One engine and what can be asked of it.

    Those that say so need the engine's core in this process, or the recording connector.
    """

    def __init__(self, wanted: dict[str, Any]) -> None:
        from vllm import LLM

        os.environ[STEP_WAIT_S] = str(wanted["step_wait_s"])
        be_patient()
        options = {
            "dtype": "float32",
            "max_model_len": 2048,
            "max_num_seqs": 4,
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "disable_log_stats": False,
            **wanted["options"],
        }
        is_recorded = wanted["recorded"] is not None
        if wanted["settings"] is not None:
            transfer = transfer_config(wanted["settings"], is_recorded=is_recorded)
            options["kv_transfer_config"] = transfer
        if is_recorded:
            os.environ["RECORDED_PAGES"] = wanted["recorded"]
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(wanted["has_core_process"]))
        know_architecture(options["model"])
        self.engine = LLM(**options).llm_engine
        self._requests = 0
        self._interrupts = 0
        self._model = options["model"]

    def generate(
        self, prompts: list[dict[str, Any]], answer: int, pause: str = ""
    ) -> list[dict[str, Any]]:
        """Answer all prompts at once; those with "abort" are given up after so many steps.

        Those with "last" are given up when all others are answered. `pause`: once, while all are
        being answered; see `_pause`.
        """
        from vllm import SamplingParams

        told: dict[str, dict[str, Any]] = {}
        aborts: dict[str, int] = {}
        last: list[str] = []
        for each in prompts:
            self._requests += 1
            greedy = SamplingParams(
                temperature=0, max_tokens=answer, detokenize=False,
                ignore_eos=True, **each.get("params", {}),
            )  # fmt: skip
            salt = {"cache_salt": each["salt"]} if each.get("salt") else {}
            prompt = {"prompt_token_ids": each["tokens"], **salt, **media_of(each)}
            if each.get("as_rows"):
                prompt = {"prompt_embeds": self._rows(each["tokens"]), **salt}
            external = f"request-{self._requests}"
            lora = lora_of(each["lora"]) if each.get("lora") else None
            request = self.engine.add_request(external, prompt, greedy, lora_request=lora)
            told[external] = {"tokens": [], "cached": 0, "first_step": 0, "last_step": 0}
            if "abort" in each:
                aborts[external if request is None else request] = each["abort"]
            if each.get("last"):
                last.append(external if request is None else request)
        step, ended = 0, 0
        while self.engine.has_unfinished_requests():
            now = [request for request, at in aborts.items() if at <= step]
            if last and ended == len(prompts) - len(last):
                now, last = [*now, *last], []
            if now:
                self.engine.abort_request(now, internal=True)
            aborts = {request: at for request, at in aborts.items() if at > step}
            is_under_way = all(len(reply["tokens"]) >= PAUSE_TOKENS for reply in told.values())
            if pause and is_under_way and self._pause(pause):
                pause = ""
            step += 1
            for result in self.engine.step():
                reply = told[result.request_id]
                reply["first_step"] = reply["first_step"] or step
                reply["last_step"] = step
                ended += result.finished
                reply["tokens"] = list(result.outputs[0].token_ids)
                reply["cached"] = result.num_cached_tokens or 0
        assert not pause, "nothing was under way"
        return list(told.values())

    def _pause(self, how: str) -> bool:
        """Sleep as a server does that keeps its answers, or "ruin" memory awake; whether it is so.

        It takes steps until nothing is in flight. KV memory is given back and taken again in that
        sleep, which a CPU build leaves out. After "sleep" there may be a stopped pool, which goes
        on then, and answers what it was asked before. The core is in here.
        """
        from vllm.v1.core.sched.interface import PauseState

        core = self.engine.engine_core.engine_core
        how, _, stopped = how.partition(" ")
        if how == "sleep":
            core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
            if core.scheduler.has_requests() or core.batch_queue:
                return False
            self.engine.sleep(1, "keep")
            assert self.engine.is_sleeping()
        self.engine.collective_rpc(ruin)
        if stopped:
            side = self._connector()._scheduler
            assert side._stores._batches, "it was asked nothing"
            os.kill(int(stopped), signal.SIGCONT)
            while side._stores._batches:
                side.look_after_pool()
                time.sleep(0.001)
        if how == "sleep":
            self.engine.wake_up()
            assert not self.engine.is_sleeping()
        return True

    def _rows(self, tokens: list[int]) -> Any:
        """What the model makes of tokens before its first layer."""
        from safetensors.torch import load_file

        weights = load_file(Path(self._model) / "model.safetensors")
        return weights["model.embed_tokens.weight"][tokens]

    def settle(self) -> bool:
        """Step as a serving engine does until nothing is in flight; with the core in here."""
        core = self.engine.engine_core.engine_core
        until = time.monotonic() + SETTLE_S
        while core.scheduler.has_requests() or self._connector().has_pending_push_work():
            self.engine.step()
            time.sleep(0.001)
            if time.monotonic() > until:
                return False
        return True

    def state(self) -> dict[str, Any]:
        """What the scheduler's side holds and has counted; with the core in here."""
        side = self._connector()._scheduler
        return {
            "counts": dict(side.counts),
            "tracked": len(side._requests),
            "asking": len(side._lookups),
            "copying": len(side._loads) + len(side._stores._copying),
            "failures": self._connector().boundary.failures,
            "is_joined": side._pool.is_joined,
        }

    def kill_at(self, point: str, pid: int, *, stops: bool = False) -> bool:
        """Kill a process, or stop it, when the engine next passes a point.

        In here, with pages recorded.
        """
        from tests.engines.vllm.real import recording_connector

        recording_connector.KILL = recording_connector.Kill(point, pid, stops)
        return True

    def has_killed(self) -> bool:
        from tests.engines.vllm.real import recording_connector

        return recording_connector.KILL is None

    def interrupt(self, every_s: float) -> int:
        """A signal so often from now on, or none again; how many there were in this process.

        Its handler is Python's, as an application's is: system calls are cut short by it.
        """
        signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
        before = self._interrupts

        def count(_number: int, _frame: object) -> None:
            self._interrupts += 1

        if every_s:
            signal.signal(signal.SIGALRM, count)
            signal.siginterrupt(signal.SIGALRM, True)
        return before

    def handled(self) -> dict[int, str]:
        """What this process does about each signal but that of `interrupt`."""
        handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        del handlers[signal.SIGALRM]
        named = {number: getattr(each, "__qualname__", each) for number, each in handlers.items()}
        return {int(number): str(each) for number, each in named.items()}

    def preemptions(self) -> int:
        """How many requests were preempted so far; in here, with pages recorded."""
        from tests.engines.vllm.real import recording_connector

        return recording_connector.PREEMPTIONS

    def metrics(self) -> list[str]:
        """Our lines of what vLLM shows on its /metrics page."""
        from prometheus_client import REGISTRY, generate_latest

        lines = generate_latest(REGISTRY).decode().splitlines()
        return [line for line in lines if line.startswith("forebay:")]

    def drafted(self) -> int:
        """How many tokens were drafted so far."""
        from prometheus_client import REGISTRY

        samples = (sample for metric in REGISTRY.collect() for sample in metric.samples)
        name = "vllm:spec_decode_num_draft_tokens_total"
        return int(sum(sample.value for sample in samples if sample.name == name))

    def has_module(self, name: str) -> bool:
        """Whether something is imported here."""
        return name in sys.modules

    def version(self) -> str:
        """Of vLLM, without what it says of its build."""
        import vllm

        return str(vllm.__version__).partition("+")[0]

    def empty_cache(self) -> bool:
        """Forget all KV of the engine's own; the connector hears nothing of it."""
        return bool(self.engine.reset_prefix_cache())

    def reset(self) -> bool:
        """As after new weights were pushed into the model: the connector hears of it."""
        return bool(self.engine.reset_prefix_cache(False, True))

    def scale_weights(self, factor: float) -> bool:
        """New weights, in memory: all of them times a factor, on every rank."""
        self.engine.collective_rpc(scale, args=(factor,))
        return True

    def block_size(self) -> tuple[int, int]:
        """Bytes of all KV tensors a block, and its tokens; with the core in here."""
        core = self.engine.engine_core.engine_core
        cache = core.model_executor.driver_worker.worker.model_runner.kv_cache_config
        total = sum(tensor.size for tensor in cache.kv_cache_tensors)
        return total // cache.num_blocks, cache.kv_cache_groups[0].kv_cache_spec.block_size

    def _connector(self) -> Any:
        return self.engine.engine_core.engine_core.scheduler.connector
