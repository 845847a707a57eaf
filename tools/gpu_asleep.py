"""The rows of dialogs without a GPU: real scheduler, connector, pool and drive; the GPU sleeps.

    make bench-asleep ASLEEP="--dir /mnt/nvme --dram 4GiB --disk 24GiB"
    make bench-asleep ASLEEP="--dram 12GiB --disk 0 --clients 8 --blocks 1820"

vLLM's own scheduler of one process is driven by the dialogs of docs/benchmarks.md. A step takes as
long as a GPU of so many tokens a second would, a copy as long as PCIe would; what is read from and
written to the drive is real, and so is every decision. Prints JSON: first the scheduler alone, then
with vLLM's own CPU tier of that DRAM, then each repeat with Forebay and what the pool and the
connector counted in it. `gpu_busy_s` is the time that the GPU would have computed: what a repeat
costs on a machine that has cores to spare.
"""

import argparse
import contextlib
import heapq
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from forebay.bench.gpu import model, talk
from forebay.bench.gpu.sides import FULL
from forebay.bench.load.script import Dialog
from forebay.engines.start import vllm as flags
from forebay.pool.client import Client
from forebay.quantity import parse_size
from forebay.settings import Settings

COPY_BYTES_A_S: Final = 50e9
BLOCK_TOKENS: Final = 16
THEIRS: Final = "OffloadingConnector"
STEPS_AT_ONCE: Final = 2


class Spoken:
    """A dialog of the GPU rows, as token ids; answers are made up."""

    def __init__(self, dialog: Dialog, words: talk.Words, seed: str) -> None:
        self.dialog, self._words = dialog, words
        self.random = random.Random(seed)
        self.known = 0  # tokens said so far

    def ask(self) -> list[int]:
        return self._words.encode(self.dialog.ask().messages)

    def answered(self, prompt_tokens: int, answer: list[int]) -> None:
        self.dialog.answered(self._words.decode(answer))
        self.known = prompt_tokens + len(answer)

    def token(self) -> int:
        return self.random.randrange(16, FULL.config["vocab_size"])


@dataclass(slots=True)
class Asked:
    """One request on its way."""

    client: int
    dialog: Any  # that has a token to say
    request: Any
    begun: float
    first: float = 0.0  # when its first token came
    computed: int = 0  # tokens of its prompt
    answer: list[int] = field(default_factory=list)


class Gpu:
    """Steps and copies take their time, one after the other each; nothing is done.

    Copies of a step begin when the steps before it are computed.
    """

    def __init__(self, block_bytes: int) -> None:
        self._block_s = block_bytes / COPY_BYTES_A_S
        self._free_in_at = self._free_out_at = self._computed_at = 0.0

    def compute(self, seconds: float) -> float:
        """When one more step is computed."""
        self._computed_at = max(self._computed_at, time.monotonic()) + seconds
        return self._computed_at

    def hold_back(self, until: float) -> None:
        """The next step begins then at the earliest."""
        self._computed_at = max(self._computed_at, until)

    def load(self, blocks: int) -> float:
        """When so many more are in the KV cache."""
        self._free_in_at = self._next(self._free_in_at) + blocks * self._block_s
        return self._free_in_at

    def store(self, blocks: int) -> float:
        """When so many more are in DRAM."""
        self._free_out_at = self._next(self._free_out_at) + blocks * self._block_s
        return self._free_out_at

    def _next(self, free_at: float) -> float:
        return max(free_at, self._computed_at, time.monotonic())


class Sleeper:
    """The workers' side of Forebay."""

    def __init__(self, gpu: Gpu) -> None:
        from forebay.engines.copies.streamed import COMING_BYTES
        from forebay.engines.vllm.metadata import ReportMetadata

        self._coming_s = COMING_BYTES / COPY_BYTES_A_S  # so long before it has landed it is told
        self._new_report = ReportMetadata
        self._gpu = gpu
        self._loads: deque[tuple[float, Any]] = deque()  # in the order of the wire
        self._coming: set[int] = set()  # serials of these of which the engine has heard
        self._told: deque[tuple[int, float]] = deque()  # in which step, and when they have landed
        self._number = 0
        self._stores: deque[tuple[float, int, tuple[int, int]]] = deque()  # until, step, slot
        self._report = ReportMetadata()

    def begin(self, step: Any) -> None:
        self._report.step = self._number = step.number
        while self._told and self._told[0][0] <= step.reported:
            self._gpu.hold_back(self._told.popleft()[1])
        self._gpu.hold_back(max((at for at, of, _ in self._stores if of <= step.freed), default=0))
        for load in step.loads:
            until = self._gpu.load(sum(len(piece.blocks) for piece in load.pieces))
            self._loads.append((until, load))
        last = 0.0
        for store in sorted(step.stores, key=lambda store: not store.is_loose):
            until = self._gpu.store(len(store.piece.blocks))
            self._stores.append((until, step.number, (store.generation, store.piece.offset)))
            last = until if store.is_loose else last
        self._gpu.hold_back(last)

    def output(self) -> Any:
        """What has been done since the last step."""
        from vllm.v1.outputs import KVConnectorOutput

        received, failed = set(), set()
        now = time.monotonic()
        for until, load in self._loads:
            if until > now + self._coming_s or load.serial in self._coming:
                continue
            self._coming.add(load.serial)
            if load.is_last:
                received.add(load.request)
                self._told.append((self._number, until))
            if load.failed:
                failed.add(load.request)
        while self._loads and self._loads[0][0] <= now:
            _, load = self._loads.popleft()
            self._coming.discard(load.serial)
            self._report.over[load.serial] = 1
        while self._stores and self._stores[0][0] <= time.monotonic():
            self._report.stored[self._stores.popleft()[2]] = 1
        report, self._report = self._report, self._new_report()
        return KVConnectorOutput(
            finished_recving=received or None,
            failed_recving=failed,
            kv_connector_worker_meta=report,
        )


class TheirSleeper:
    """The workers' side of vLLM's own CPU tier."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._jobs: list[tuple[float, int, str]] = []
        self._deferred: list[tuple[int, Any]] = []

    def begin(self, step: Any) -> None:
        for job, store in self._deferred:
            until = self._gpu.store(len(store.src_spec.block_ids))
            heapq.heappush(self._jobs, (until, job, ""))
        self._deferred = list(step.store_jobs.items())  # it begins them with the next step
        for job, load in step.load_jobs.items():
            until = self._gpu.load(len(load.dst_spec.block_ids))
            heapq.heappush(self._jobs, (until, job, load.req_id))

    def output(self) -> Any:
        """What has been done since the last step."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
            OffloadingWorkerMetadata,
        )
        from vllm.v1.outputs import KVConnectorOutput

        done, received = OffloadingWorkerMetadata(), set()
        while self._jobs and self._jobs[0][0] <= time.monotonic():
            _, job, request = heapq.heappop(self._jobs)
            done.mark_completed(job)
            received |= {request} if request else set()
        return KVConnectorOutput(
            finished_recving=received or None,
            kv_connector_worker_meta=done if done.completed_jobs else None,
        )


@dataclass
class Engine:
    """A scheduler and a GPU that sleeps."""

    arguments: argparse.Namespace
    extra: dict[str, Any] | None  # Forebay's, or none of it
    scheduler: Any = field(init=False)
    hasher: Any = field(init=False)
    gpu: Gpu = field(init=False)
    sleeper: "Sleeper | TheirSleeper" = field(init=False)

    def __post_init__(self) -> None:
        import torch
        from vllm.config import KVTransferConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
            KVCacheTensor,
        )
        from vllm.v1.structured_output import StructuredOutputManager

        shape = model.QWEN3_8B
        wanted: dict[str, Any] = {}
        if self.extra is not None:
            wanted["kv_transfer_config"] = KVTransferConfig(**self.extra)
        config = EngineArgs(
            model=model.write(Path(tempfile.gettempdir()), shape),
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="bfloat16",
            max_model_len=40_960,
            max_num_seqs=64,
            max_num_batched_tokens=8192,
            block_size=BLOCK_TOKENS,
            async_scheduling=True,
            generation_config="vllm",
            **wanted,
        ).create_engine_config()
        blocks = config.cache_config.num_gpu_blocks = self.arguments.blocks
        names = [f"model.layers.{at}.self_attn.attn" for at in range(shape["num_hidden_layers"])]
        heads, size = shape["num_key_value_heads"], shape["head_dim"]
        spec = FullAttentionSpec(
            block_size=BLOCK_TOKENS, num_kv_heads=heads, head_size=size, dtype=torch.bfloat16
        )
        page = spec.page_size_bytes
        tensor = KVCacheTensor(page * blocks * len(names), names, page * blocks, page)
        cache = KVCacheConfig(
            blocks, [tensor], [KVCacheGroupSpec(names, spec)], kv_cache_layout="NHD"
        )
        hash_of = get_hash_fn_by_name("sha256_cbor")
        kv_cache_utils.init_none_hash(hash_of)
        self.hasher = kv_cache_utils.get_request_block_hasher(BLOCK_TOKENS, hash_of)
        manager = StructuredOutputManager(config)
        self.scheduler = AsyncScheduler(config, cache, manager, block_size=BLOCK_TOKENS)
        theirs = self.extra is not None and self.extra["kv_connector"] == THEIRS
        self.gpu = Gpu(page * len(names))
        self.sleeper = (TheirSleeper if theirs else Sleeper)(self.gpu)

    @property
    def side(self) -> Any:
        """Our side of the scheduler."""
        return self.scheduler.connector._scheduler

    def identify(self) -> None:
        """Wait until the connector knows what it may share."""
        until = time.monotonic() + 30
        while self.side.root is None and time.monotonic() < until:
            self.scheduler.connector._identify()
            time.sleep(0.02)

    def talk(self, repeat: int) -> dict[str, Any]:
        """All dialogs of all clients; what it took."""
        return _Talk(self, repeat).run()


class Run:
    """Requests on their way through one engine, step by step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.live: dict[str, Asked] = {}
        self.sleeper = engine.sleeper
        self.busy_s = self.steps = 0.0
        self.begun: deque[tuple[float, Any, dict[str, bool], Any]] = deque()

    def send(self, name: str, prompt: list[int], tokens: int, asked: Asked) -> Asked:
        """A request for so many tokens."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        answer = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
        asked.request = Request(name, prompt, answer, None, block_hasher=self.engine.hasher)
        asked.begun = time.perf_counter()
        self.live[name] = asked
        self.engine.scheduler.add_request(asked.request)
        return asked

    def step(self) -> None:
        """As vLLM does: the next step is built while the one before it is computed."""
        if self.engine.scheduler.has_requests():
            is_computing = self._begin()
            if len(self.begun) < STEPS_AT_ONCE and is_computing:
                return
        if self.begun:
            self._end(*self.begun.popleft())

    def idle_step(self) -> None:
        """One in which nothing is computed: stores end all the same."""
        self._begin()
        self._end(*self.begun.popleft())

    def ended(self, asked: Asked) -> None:
        """A request has all its tokens."""
        raise NotImplementedError

    def _begin(self) -> bool:
        """Build a step; whether it computes anything."""
        engine, arguments = self.engine, self.engine.arguments
        output = engine.scheduler.schedule()
        done = None
        if engine.extra is not None:
            self.sleeper.begin(output.kv_connector_metadata)
            done = self.sleeper.output()  # a worker looks as soon as it has launched the step
        tokens = output.total_num_scheduled_tokens
        step_s = arguments.step_ms / 1000 + tokens / arguments.speed if tokens else 0.001
        self.busy_s += step_s if tokens else 0.0
        self.steps += 1
        samples = {}
        for name, count in output.num_scheduled_tokens.items():
            asked = self.live[name]
            if not asked.first:
                asked.computed += count
            samples[name] = not asked.request.is_prefill_chunk
        self.begun.append((engine.gpu.compute(step_s), output, samples, done))
        return bool(tokens)

    def _end(self, at: float, output: Any, samples: dict[str, bool], done: Any) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        time.sleep(max(0.0, at - time.monotonic()))
        names = list(samples)
        ran = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=[self._sampled(name) if samples[name] else [] for name in names],
            kv_connector_output=done,
        )
        for outputs in self.engine.scheduler.update_from_output(output, ran).values():
            for each in outputs.outputs:
                self._heard(each)

    def _sampled(self, name: str) -> list[int]:
        asked = self.live.get(name)  # one that has ended is in the step behind its last
        return [] if asked is None else [asked.dialog.token()]

    def _heard(self, each: Any) -> None:
        asked = self.live.get(each.request_id)
        if asked is None:
            return
        if each.new_token_ids and not asked.first:
            asked.first = time.perf_counter()
        asked.answer += each.new_token_ids
        if each.finished:
            del self.live[each.request_id]
            self.ended(asked)


class _Talk(Run):
    """One repeat."""

    def __init__(self, engine: Engine, repeat: int) -> None:
        super().__init__(engine)
        self.repeat = repeat
        clients = engine.arguments.clients
        turns = [FULL.first_tokens, *[FULL.turn_tokens] * (talk.TURNS - 1)]
        words = talk.Words(FULL.config["vocab_size"])
        count = clients * talk.DIALOGS_A_CLIENT
        made = talk.dialogs_of(count, turns, FULL.answer_tokens, repeat)
        spoken = [Spoken(dialog, words, f"{repeat}/{at}") for at, dialog in enumerate(made)]
        self.dialogs = [spoken[client::clients] for client in range(clients)]
        self.left = [talk.TURNS * talk.DIALOGS_A_CLIENT] * clients
        self.done: list[Asked] = []
        self.returning = self.cached = 0

    def run(self) -> dict[str, Any]:
        begun = time.perf_counter()
        for client in range(len(self.dialogs)):
            self._send(client)
        while self.live or self.begun:
            self.step()
        took_s = time.perf_counter() - begun
        waits = sorted((asked.first - asked.begun) * 1000 for asked in self.done)
        return {
            "requests_per_s": round(len(self.done) / took_s, 3),
            "seconds": round(took_s, 2),
            "gpu_busy_s": round(self.busy_s, 2),
            "ttft_mean_ms": round(sum(waits) / len(waits)),
            "ttft_p95_ms": round(waits[len(waits) * 95 // 100]),
            "cached_share": round(self.cached / max(1, self.returning), 3),
            "steps": int(self.steps),
        }

    def _send(self, client: int) -> None:
        if not self.left[client]:
            return
        self.left[client] -= 1
        dialog = self.dialogs[client][self.left[client] % talk.DIALOGS_A_CLIENT]
        name = f"{self.repeat}-{client}-{self.left[client]}"
        self.send(name, dialog.ask(), FULL.answer_tokens, Asked(client, dialog, None, 0.0))

    def ended(self, asked: Asked) -> None:
        self.done.append(asked)
        prompt = asked.request.num_prompt_tokens
        self.returning += asked.dialog.known
        self.cached += min(max(0, prompt - asked.computed), asked.dialog.known)
        asked.dialog.answered(prompt, asked.answer)
        self._send(asked.client)


def options(doc: str, repeats: int, speed: float) -> argparse.ArgumentParser:
    """What every rehearsal may be told."""
    parser = argparse.ArgumentParser(description=doc.split("\n", 1)[0])
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where the drive is")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--speed", type=float, default=speed, help="tokens a second")
    parser.add_argument("--step-ms", type=float, default=5.0, help="what a step takes besides")
    parser.add_argument("--blocks", type=int, default=3640, help="of the KV cache, 16 tokens each")
    return parser


def asked_for() -> argparse.Namespace:
    """The command line."""
    parser = options(__doc__, repeats=3, speed=36_000)
    parser.add_argument("--dram", default="4GiB")
    parser.add_argument("--disk", default="24GiB", help="0: none")
    parser.add_argument("--clients", type=int, default=16)
    return parser.parse_args()


def main() -> None:
    arguments = asked_for()
    os.environ.update(VLLM_LOGGING_LEVEL="WARNING", PYTHONHASHSEED="0", HF_HUB_OFFLINE="1")
    print(json.dumps({"alone": Engine(arguments, None).talk(0)}), flush=True)
    with_theirs(arguments)
    place = Path(tempfile.mkdtemp(prefix="fb-", dir=arguments.dir))
    try:
        with_forebay(arguments, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def with_theirs(arguments: argparse.Namespace) -> None:
    """All repeats, with vLLM's own tier."""
    sized = {"cpu_bytes_to_use": parse_size(arguments.dram)}
    wanted = {"kv_connector": THEIRS, "kv_role": "kv_both", "kv_connector_extra_config": sized}
    engine = Engine(arguments, wanted)
    for repeat in range(arguments.repeats):
        print(json.dumps({"vllm_cpu": engine.talk(repeat)}), flush=True)


def with_forebay(arguments: argparse.Namespace, place: Path) -> None:
    """All repeats, on one pool that starts empty."""
    wanted = Settings(socket=str(place / "s"), dram=parse_size(arguments.dram))
    with pool_of(wanted, place, arguments.dram, arguments.disk) as client:
        repeat_with(Engine(arguments, flags.transfer_config(wanted, wanted.socket)), client)


@contextlib.contextmanager
def pool_of(wanted: Settings, place: Path, dram: str, disk: str) -> Iterator[Client]:
    """A pool in a process of its own, in this directory; killed at the end."""
    command = [sys.executable, "-m", "forebay.cli", "pool", "--socket", wanted.socket]
    command += ["--dram", dram]
    if parse_size(disk):
        (place / "disk").mkdir(mode=0o700)
        command += ["--disk", f"{place / 'disk'}:{disk}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as pool:
        try:
            with Client(wanted.socket) as client:
                until = time.monotonic() + 20
                while not client.join():
                    if time.monotonic() > until:
                        raise SystemExit("the pool does not answer.")
                    time.sleep(0.05)
                yield client
        finally:
            pool.kill()


def repeat_with(engine: Engine, client: Client) -> None:
    """What each repeat took, and what was counted in it."""
    engine.identify()
    seen: Counter[str] = Counter()
    for repeat in range(engine.arguments.repeats):
        found = engine.talk(repeat)
        stats: Any = client.stats(5)
        side = {f"connector.{name}": count for name, count in engine.side.counts.items()}
        counts = Counter({**stats["counters"], **side})
        found["counted"] = {
            name: count - seen[name]
            for name, count in sorted(counts.items())
            if count != seen[name]
        }
        seen = counts
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # vLLM's threads would be waited for
