"""The demo: the same dialogs against vLLM without and with the pool, then after both restart.

The engine's KV cache is too small for the dialogs, so without the pool every turn is computed from
its first token. Answers are greedy and in float32, where equal histories give equal answers.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from forebay.bench.dialog import client, engine, script
from forebay.bench.dialog.figures import Figures, figures_of, share_equal
from forebay.bench.dialog.holding import Held, Load, Turn, ask_again, hold
from forebay.bench.dialog.script import Dialog, Shape
from forebay.bench.served import process
from forebay.engines.start import demo_model, vllm
from forebay.errors import StartupError
from forebay.pool.client import Client
from forebay.settings import DiskSetting, Settings
from forebay.sys.scratch import scratch
from forebay.tiers.contract import Miss

Show = Callable[[str, float], None]  # what is being done, and how much of all is done (0 to 1)
_STOP_S: Final = 60.0  # a pool writes for up to 20 s
_STATS_S: Final = 10.0
_CONTEXT_TOKENS: Final = 4096
_HASH_S: Final = 300.0
_LOOKUP_MS: Final = 1000.0  # where vLLM computes on every core, the pool may be late to answer
# On CPU, vLLM keeps more cores to itself with a connector than without; both get all of them here.
_ALL_CORES: Final = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}


SHAPE: Final = Shape(dialogs=5, turns=4, first_words=1300, turn_words=24, answer_tokens=16)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the demo does; the last turn of every dialog comes after the restart."""

    parent: str  # a directory on the drive that stands for NVMe
    shape: Shape = SHAPE
    kv_cache_bytes: int = 192 << 20  # 46 KB a token: not two dialogs
    dram_bytes: int = 1 << 30
    disk_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class Moved:
    """What a pool stored and gave back."""

    stored_chunks: int
    stored_bytes: int
    written_chunks: int  # to NVMe
    written_bytes: int
    read_nvme_chunks: int  # into DRAM
    read_nvme_bytes: int
    read_dram_chunks: int  # by the engine, wherever they came from
    read_dram_bytes: int


class Again(NamedTuple):
    """The last turn of every dialog once more, medians: the pool against vLLM's own cache."""

    pool_ttft_s: float  # after all others, from the pool
    own_ttft_s: float  # and at once again


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured."""

    shape: Shape
    cache_bytes: int  # the engine's own KV cache
    without: Figures
    with_pool: Figures
    moved: Moved
    again: Again
    equal: float  # share of answers, word for word
    next_without_ttft_s: float  # median of the turn after the restart, had there been no pool
    restarted: Figures
    restarted_moved: Moved
    restarted_equal: float
    seconds: float

    @property
    def speedup(self) -> float:
        """How many times sooner a returning turn begins."""
        return self.without.later_ttft_s / self.with_pool.later_ttft_s

    def as_json(self) -> dict[str, Any]:
        """Names for programs."""
        return {
            "dialogs": self.shape.dialogs,
            "turns": self.shape.turns,
            "kv_cache_bytes": self.cache_bytes,
            "without": self.without.as_json(),
            "with": {**self.with_pool.as_json(), **asdict(self.moved)},
            "again_pool_ttft_s": round(self.again.pool_ttft_s, 4),
            "again_own_cache_ttft_s": round(self.again.own_ttft_s, 4),
            "answers_equal": self.equal,
            "later_ttft_speedup": round(self.speedup, 2),
            "restarted": {**self.restarted.as_json(), **asdict(self.restarted_moved)},
            "restarted_answers_equal": self.restarted_equal,
            "restarted_without_ttft_s": round(self.next_without_ttft_s, 4),
            "seconds": round(self.seconds, 1),
        }


@dataclass(slots=True)
class _Demo:
    """A demo under way. Used by one thread."""

    plan: Plan
    show: Show
    model: str
    home: Path
    done: int = 0  # answers
    dialogs: list[Dialog] = field(default_factory=list)
    again: Again | None = None

    def say(self, what: str) -> None:
        """What is being done, for whoever watches; a start counts like a few answers."""
        total = 2 * self.plan.shape.dialogs * self.plan.shape.turns
        self.show(what, min(1.0, self.done / total))

    def heard(self, turn: Turn) -> None:
        """An answer has come."""
        self.done += 1
        first = f"{turn.answer.ttft_s:.2f} s to its first token"
        self.say(f"{turn.dialog}, turn {turn.number + 1}: {first}")

    @contextlib.contextmanager
    def engine(self, name: str, socket: str | None) -> Iterator[Load]:
        """An engine on the pool at that socket, or on none; warm, and gone afterwards."""
        port = engine.free_port()
        settings = Settings(no_pool="fail", lookup_deadline_ms=_LOOKUP_MS)
        transfer = None if socket is None else vllm.transfer_config(settings, socket)
        command = vllm.command(_arguments(self.plan, self.model, port), transfer)
        variables = {**vllm.environment(settings, os.environ, offline=True), **_ALL_CORES}
        self.say(f"starting vLLM {name}")
        with engine.running(command, variables, port, self.home / "engine.log") as endpoint:
            self.say(f"vLLM {name} is up")
            hello = [{"role": "user", "content": "Hello"}]
            asyncio.run(client.ask(endpoint, demo_model.NAME, hello, 2))
            yield Load(endpoint, demo_model.NAME, self.plan.shape.answer_tokens)

    def without(self) -> tuple[Held, Held]:
        """All dialogs on vLLM alone: those before the restart, and the turn after it."""
        dialogs = script.make(self.plan.shape)
        with self.engine("without a pool", None) as load:
            held = hold(load, dialogs, self.plan.shape.turns - 1, self.heard)
            return held, hold(load, dialogs, 1, self.heard)

    def with_pool(self, rounds: int) -> tuple[Held, Moved]:
        """So many further turns of every dialog on a pool that begins, and ends, with them."""
        disks = [DiskSetting(str(self.home / "nvme"), self.plan.disk_bytes)]
        self.say("starting a pool")
        with (
            process.running(self.plan.dram_bytes, disks) as pool,
            pool.client() as watch,  # a pool without anyone would end meanwhile
        ):
            with self.engine("on the pool", pool.socket) as load:
                held = hold(load, self.dialogs, rounds, self.heard)
                moved = _moved(_counters(watch))
                if self.again is None:  # the second time, drive and DRAM would be mixed
                    self.again = self.once_more(load)
            watch.close()
            self.say("ending the pool")
            pool.stop(_STOP_S)
        return held, moved

    def once_more(self, load: Load) -> Again:
        """What a hit in the pool costs over one in vLLM's own cache."""
        self.say("asking once more, from the pool and from vLLM's own cache")
        load = replace(load, answer_tokens=1)
        pairs = [(ask_again(load, each), ask_again(load, each)) for each in self.dialogs]
        return Again(
            median(first.ttft_s for first, _ in pairs), median(own.ttft_s for _, own in pairs)
        )


def run(plan: Plan, show: Show) -> Report:
    """Hold all dialogs; minutes. A StartupError says in a sentence what is in the way."""
    begun = time.monotonic()
    vllm.require()
    show("preparing the demo model", 0.0)
    model = demo_model.prepare()
    _know_weights(model)
    shape = plan.shape
    with scratch(plan.parent) as home:
        (home / "nvme").mkdir(mode=0o700)
        demo = _Demo(plan, show, model, home, dialogs=script.make(shape))
        before, after = demo.without()
        held, moved = demo.with_pool(shape.turns - 1)
        restarted, restarted_moved = demo.with_pool(1)
    assert demo.again is not None
    return Report(
        shape=shape,
        cache_bytes=plan.kv_cache_bytes,
        without=figures_of(before),
        with_pool=figures_of(held),
        moved=moved,
        again=demo.again,
        equal=share_equal(held, before),
        next_without_ttft_s=figures_of(after).later_ttft_s,
        restarted=figures_of(restarted),
        restarted_moved=restarted_moved,
        restarted_equal=share_equal(restarted, after),
        seconds=time.monotonic() - begun,
    )


def _arguments(plan: Plan, model: str, port: int) -> list[str]:
    return [
        *("--model", model, *demo_model.ARGUMENTS),
        *("--host", engine.HOST, "--port", str(port)),
        *("--dtype", "float32", "--max-model-len", str(_CONTEXT_TOKENS), "--max-num-seqs", "4"),
        *("--kv-cache-memory-bytes", str(plan.kv_cache_bytes)),
        "--enable-prompt-tokens-details",
    ]


def _know_weights(model: str) -> None:
    """Have the weights hashed now: an engine shares nothing until it knows them."""
    command = [sys.executable, "-P", "-m", "forebay.engines.weights", model]
    try:
        subprocess.run(command, capture_output=True, timeout=_HASH_S, check=True)
    except (OSError, subprocess.SubprocessError):
        raise StartupError("the demo model's weights cannot be read.") from None


def _counters(watch: Client) -> dict[str, int]:
    stats = watch.stats(_STATS_S)
    if isinstance(stats, Miss):
        raise StartupError("the pool went away.")
    found = stats["counters"]
    assert isinstance(found, dict)
    return found


def _moved(counters: dict[str, int]) -> Moved:
    def count(name: str) -> int:
        return counters.get(name, 0)

    return Moved(
        stored_chunks=count("stored.chunks"),
        stored_bytes=count("stored.bytes"),
        written_chunks=count("disk.written"),
        written_bytes=count("disk.written_bytes"),
        read_nvme_chunks=count("disk.loaded"),
        read_nvme_bytes=count("disk.loaded_bytes"),
        read_dram_chunks=count("loaded.chunks"),
        read_dram_bytes=count("loaded.bytes"),
    )
