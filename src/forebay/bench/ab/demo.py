"""The demo: the same dialogs against vLLM without and with the pool, then after a restart.

Both engines run at once, but only one is asked at a time, and the next request waits until the pool
is idle, so that nothing else computes during a measurement. Each engine's KV cache is too small for
the dialogs: without the pool every turn is computed from its first token. Answers are greedy and in
float32, in which equal histories give equal answers.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from forebay.bench.ab import demo_engine, demo_size
from forebay.bench.ab.demo_report import (
    ALONE,
    WITH,
    ComparedTurn,
    DemoPhase,
    DemoReport,
    RepeatedTurn,
    in_words,
)
from forebay.bench.ab.demo_size import DemoSize, EngineSpeed
from forebay.bench.ab.variants import StartedServer, StartingServer, VllmServer, wait_until_sharing
from forebay.bench.load import client
from forebay.bench.load.client import Completion, Failed
from forebay.bench.load.sessions import ChatSession, PromptRequest, SyntheticText, question
from forebay.bench.processes import PoolProcess, running_pool
from forebay.bench.result import machine
from forebay.engines.start import demo_model, vllm
from forebay.errors import StartupError
from forebay.quantity import format_size
from forebay.settings import DiskSetting
from forebay.sys.scratch import scratch

Show = Callable[[str, float], None]  # what is being done, and how much of all is done (0 to 1)
Note = Callable[[str], None]  # a line that stays
_STOP_S: Final = 60.0  # a pool writes for up to 20 s
_QUIET_S: Final = 0.1
_QUIET_MAX_S: Final = 10.0
_WARM_TOKENS: Final = 320  # enough to be stored
_MARGIN: Final = 0.9  # of the time that is left, since a machine's speed varies
_DRAM_BYTES: Final = 1 << 30
_DISK_BYTES: Final = 2 << 30
_MEMORY_BYTES: Final = 5 << 30  # two engines of 2 GB each, and the chunks
_READY: Final = 0.2  # of all that is done, when both engines answer
_BEFORE: Final = 0.7  # and at the restart


@dataclass(slots=True)
class _Demo:
    """A demo under way. Used by one thread."""

    minutes: float  # that it may take
    show: Show
    note: Note
    engine: VllmServer
    context: int
    disk: DiskSetting
    begun: float = field(default_factory=time.monotonic)
    ready_s: float = 0.0  # since it began: both engines answer
    first_s: float = 0.0  # and: the first turn that returned was compared
    done: float = 0.0  # 0 to 1
    words: SyntheticText = field(default_factory=SyntheticText)  # by the engine's own count
    notes: list[str] = field(default_factory=list)
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by variant
    alone: list[ChatSession] = field(default_factory=list)
    pooled: list[ChatSession] = field(default_factory=list)

    def say(self, what: str) -> None:
        """Report what is being done."""
        self.show(what, self.done)

    def remark(self, text: str) -> None:
        """Print a line that also goes into the report."""
        self.notes.append(text)
        self.note(text)

    def elapsed(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self.begun

    def left(self) -> float:
        """Seconds that are left of `minutes`."""
        return self.minutes * 60 - self.elapsed()

    @contextlib.contextmanager
    def on_pool(self) -> Iterator[tuple[PoolProcess, StartingServer]]:
        """A pool and an engine that joins it; at the end both are ended and chunks are on NVMe."""
        self.say("starting a pool")
        with running_pool(_DRAM_BYTES, [self.disk]) as pool:
            with StartedServer(WITH, self.engine).starting(pool) as engine:
                self.commands[WITH] = engine.commands
                yield pool, engine
                self.say("ending the engine")
            self.say("ending the pool: it writes what is not on NVMe yet")
            pool.stop(_STOP_S)

    def wait(self, engines: dict[str, StartingServer]) -> None:
        """Wait until all engines answer, and report how far each is."""

        def look() -> None:
            stages = {
                name: demo_engine.stage_of(each.process.log) for name, each in engines.items()
            }
            if len(engines) > 1 and len(set(stages.values())) == 1:
                stages = {"both engines": stages[ALONE]}
            self.say("starting " + "; ".join(f"{name}: {at}" for name, at in stages.items()))

        for each in engines.values():
            each.process.wait(look)

    def measure_speed(self, alone: StartingServer, engine: StartingServer) -> EngineSpeed:
        """Warm up both engines and measure this machine's speed; also sizes the dialogs' words."""
        self.say(f"warming up {WITH}")
        wait_until_sharing(engine.target, engine.counted, self.say, _WARM_TOKENS)
        self.say(f"warming up {ALONE}, and measuring how fast it reads a prompt")
        hello = _asked(alone, question("Hello", 2))
        text = SyntheticText().text("speed", _WARM_TOKENS)
        answer = _asked(alone, question(text, demo_size.ANSWER_TOKENS))
        more = answer.prompt_tokens - hello.prompt_tokens
        self.words = SyntheticText(max(1.0, more / len(text.split())))
        return EngineSpeed(answer.prompt_tokens / answer.ttft_s, answer.tpot_s or 0.0, self.ready_s)

    def size(self, speed: EngineSpeed) -> DemoSize:
        """Choose, and report, the size of the demo that fits into the time."""
        found = demo_size.sized(speed, self.context, _MARGIN * self.left())
        dialogs = found.dialogs
        self.alone, self.pooled = (
            list(dialogs.queue(self.words, 1, "demo")) for _ in ("alone", "with the pool")
        )
        said = (
            f"This machine reads {speed.prompt_tokens_per_s:,.0f} prompt tokens per second:"
            f" {dialogs.hold} dialogs of {dialogs.turns} turns, with a history of"
            f" {dialogs.first_tokens:,} tokens each"
        )
        minutes = f"{self.minutes:g} {'minute' if self.minutes == 1 else 'minutes'}"
        if found.fits:
            self.remark(f"{said}, fit into {minutes}.")
        else:
            needed = (self.elapsed() + found.expected_s) / 60
            self.remark(
                f"{said}, are the least that shows anything; they take about {needed:.0f} minutes,"
                f" more than the {minutes} given."
            )
        return found

    def round(
        self,
        number: int,
        alone: StartingServer,
        on: tuple[PoolProcess, StartingServer],
        until: float,
    ) -> list[ComparedTurn]:
        """Ask both engines for one turn of every dialog, in alternating order.

        `until` is the share of the demo that is done afterwards (0 to 1).
        """
        pool, engine = on
        step = (until - self.done) / (2 * len(self.alone))
        turns = []
        for at, (one, other) in enumerate(zip(self.alone, self.pooled, strict=True)):
            place = f"turn {number + 1} of {one.name} (of {len(self.alone)})"
            answers: dict[str, Completion] = {}
            asks = [(ALONE, alone, one), (WITH, engine, other)]
            for name, server, dialog in asks if (number + at) % 2 == 0 else reversed(asks):
                self.say(f"{place}: asking {name}")
                answers[name] = _asked(server, dialog.request())
                dialog.add_answer(answers[name].text)
                _wait_until_quiet(pool)
                self.done += step
            turn = ComparedTurn(one.name, number, answers[ALONE], answers[WITH])
            turns.append(turn)
            self.note(line_of(turn))
            if number and not self.first_s:
                self.first_s = self.elapsed()
        return turns

    def before_restart(
        self, size: DemoSize, alone: StartingServer, on: tuple[PoolProcess, StartingServer]
    ) -> list[ComparedTurn]:
        """All turns but the last; fewer if the machine has become slower meanwhile."""
        turns: list[ComparedTurn] = []
        rounds = size.dialogs.turns - 1
        for number in range(rounds):
            begun = self.elapsed()
            done = _READY + (_BEFORE - _READY) * (number + 1) / rounds
            turns += self.round(number, alone, on, done)
            took = self.elapsed() - begun
            if 1 <= number < rounds - 1 and self.left() < 2 * took + self.ready_s:
                self.remark(
                    f"The machine has become slower, so turns {number + 2} to {rounds} are left"
                    " out; after the restart each dialog goes on."
                )
                break
        return turns

    def once_more(self, engine: StartingServer) -> RepeatedTurn:
        """Measure a hit in the pool against one in vLLM's own cache."""
        self.say("asking once more, from the pool and from vLLM's own cache")
        pairs = []
        for dialog in self.pooled:
            ask = replace(dialog.request(dialog.turn - 1), answer_tokens=1)
            pairs.append((_asked(engine, ask).ttft_s, _asked(engine, ask).ttft_s))
        return RepeatedTurn(median(pool for pool, _ in pairs), median(own for _, own in pairs))

    def course(self) -> DemoReport:
        """Run the whole demo."""
        with StartedServer(ALONE, self.engine).starting(None) as alone:
            self.commands[ALONE] = alone.commands
            if machine.gpus():  # engines that begin at once disagree about its free memory
                self.wait({ALONE: alone})
            with self.on_pool() as on:
                pool, engine = on
                self.wait({ALONE: alone, WITH: engine})
                self.ready_s, self.done = self.elapsed(), _READY
                self.note(f"Both engines answer after {self.ready_s:.0f} s.")
                speed = self.measure_speed(alone, engine)
                size = self.size(speed)
                engine.counted()
                before = _phase(self.before_restart(size, alone, on), engine)
                again = self.once_more(engine)
            self.note("Restarting the engine with Forebay and its pool; DRAM is lost, NVMe stays.")
            with self.on_pool() as on:
                pool, engine = on
                self.wait({WITH: engine})
                wait_until_sharing(engine.target, engine.counted, self.say, _WARM_TOKENS)
                _wait_until_quiet(pool)
                engine.counted()
                last = self.alone[0].turn
                restarted = _phase(self.round(last, alone, on, 1.0), engine)
        return DemoReport(
            dialogs=replace(size.dialogs, turns=last + 1),
            cache_bytes=demo_engine.cache_bytes(self.context),
            speed=speed,
            before=before,
            again=again,
            restarted=restarted,
            ready_s=self.ready_s,
            first_s=self.first_s,
            seconds=self.elapsed(),
            notes=tuple(self.notes),
            commands=(self.commands[ALONE], self.commands[WITH]),
        )


def run(parent: str, minutes: float, show: Show, note: Note) -> DemoReport:
    """Run the demo; a StartupError says in one sentence why that is not possible.

    `parent` is a directory on the drive that serves as NVMe. The time starts when the model is
    ready: it is converted only once.
    """
    vllm.require()
    once = "" if demo_model.is_ready() else " (converting it, once)"
    show(f"preparing the demo model{once}", 0.0)
    model = demo_model.prepare()
    show("hashing the demo model's weights", 0.0)
    demo_engine.know_weights(model)
    context = demo_size.context_tokens(demo_engine.cores(), has_gpu=bool(machine.gpus()))
    engine = demo_engine.engine_of(model, demo_engine.cache_bytes(context), context)
    with scratch(parent) as home:
        nvme = home / "nvme"
        nvme.mkdir(mode=0o700)
        demo = _Demo(minutes, show, note, engine, context, DiskSetting(str(nvme), _DISK_BYTES))
        for remark in _remarks():
            demo.remark(remark)
        note(f"Starting {ALONE} and {WITH}, the same small model on both.")
        return demo.course()


def line_of(turn: ComparedTurn) -> str:
    """One comparison in words."""
    times = f"{turn.alone.ttft_s:.2f} s without, {turn.with_pool.ttft_s:.2f} s with Forebay"
    what = f"turn {turn.number + 1} of {turn.dialog}"
    if turn.number == 0:
        return f"{what}: first token after {times} (new to both)"
    return f"{what}: first token after {times} ({in_words(turn.speedup)})"


def _remarks() -> list[str]:
    """Remarks about this machine that matter for the figures."""
    found = [f"{note.capitalize()}; times will vary." for note in machine.other_load()]
    free_bytes = machine.available_memory_bytes()
    if free_bytes < _MEMORY_BYTES:
        free, needed = format_size(free_bytes), format_size(_MEMORY_BYTES)
        found.append(f"Only {free} of memory are available; two engines and a pool need {needed}.")
    return found


def _asked(server: StartingServer, ask: PromptRequest) -> Completion:
    """Ask a server; StartupError if that fails."""
    answer = asyncio.run(client.ask(server.target, ask.messages, ask.answer_tokens))
    if isinstance(answer, Failed):
        raise StartupError(f"a request failed: {answer.why}.")
    return answer


def _phase(turns: list[ComparedTurn], engine: StartingServer) -> DemoPhase:
    """These turns, with what the pool has counted since the last call."""
    moved = engine.counted()
    if moved is None:
        raise StartupError("the pool went away.")
    return DemoPhase(tuple(turns), moved)


def _wait_until_quiet(pool: PoolProcess) -> None:
    """Wait until the pool uses no CPU time, or for `_QUIET_MAX_S`."""
    before, until = pool.cpu_s(), time.monotonic() + _QUIET_MAX_S
    while time.monotonic() < until:
        time.sleep(_QUIET_S)
        now = pool.cpu_s()
        if now == before:
            return
        before = now
