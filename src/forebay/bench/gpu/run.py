"""A row while it runs: its engines, its pool, its time limit."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from forebay.bench import processes
from forebay.bench.gpu import energy, model, requests, variants
from forebay.bench.gpu.engine import TokenEngine
from forebay.bench.gpu.results import RowResults
from forebay.bench.gpu.variants import VLLM_CPU, WITH_POOL, RowScale
from forebay.bench.processes import PoolProcess
from forebay.errors import StartupError
from forebay.metrics import reading
from forebay.pool.client import Client
from forebay.settings import DiskSetting

ROW_S: Final = 520.0  # after which a row ends; the next run measures the rest
DISK_BYTES_MAX: Final = 40 << 30
FREE_BYTES_MIN: Final = 15 << 30
_STORED: Final = "operations.dram.store.ok"
_REACH_S: Final = 90.0
_QUIET_S: Final = 0.2
_LOOK_S: Final = 0.2
_WARM_SEED: Final = 990_000
_NOT_ENCODED: Final = "compress is on, and this engine encodes nothing: see its log for the reason."

_Found = TypeVar("_Found")
Counted = dict[str, dict[str, float]]  # by the pool, by the connector; empty without Forebay
Measure = Callable[[str, Any, int], Awaitable[dict[str, Any]]]  # variant, engine, repeat


@dataclass(slots=True)
class RowRun:
    """One run of one row after the other."""

    place: Path  # private, on the drive to measure; gone afterwards
    until: float  # monotonic
    say: Callable[[str], None]
    repeats: int = 0  # at most, of every row; 0: as many as the row wants
    energy: Callable[[], float | None] = energy.joules  # of this machine's GPUs so far
    scale: RowScale = field(init=False)
    results: RowResults = field(init=False)
    _slowest_s: float = 0.0  # of a repeat so far
    _warmed: int = 0
    _watch: Client | None = None
    _stage: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _staged: tuple[object, dict[str, TokenEngine]] | None = None
    _absent: dict[str, str] = field(default_factory=dict)  # variants that did not start, and why

    def begin_row(self, scale: RowScale, results: RowResults) -> None:
        self.scale, self.results, self._slowest_s = scale, results, 0.0

    # Time.

    def has_time(self, seconds: float = 0.0) -> bool:
        """Whether there is time for another repeat, or for this many seconds."""
        return time.monotonic() + max(seconds, 1.2 * self._slowest_s) < self.until

    async def repeat(
        self, engines: Mapping[str, TokenEngine | None], measure: Measure, count: int
    ) -> None:
        """Run repeats up to `count`, each with all variants, starting with another one each time.

        A variant without an engine is started by `measure`, which does its own counting and calls
        `measured` once the engine is up.
        """
        names, count = list(engines), min(count, self.repeats or count)
        while len(self.results.repeats) < count:
            number = len(self.results.repeats)
            if not self.has_time():
                self.say(f"no time for repeat {number + 1}; run the row again")
                return
            begun = time.monotonic()
            order = names[number % len(names) :] + names[: number % len(names)]
            found = {}
            for name in order:
                before = await self.counted(name, engines[name])
                work = measure(name, engines[name], number)
                found[name] = await (work if engines[name] is None else self.measured(work))
                self.say(f"repeat {number + 1}, {name}: {found[name]}")
                found[name] |= await self.since(before, name, engines[name])
            self._slowest_s = max(self._slowest_s, time.monotonic() - begun)
            self.results.keep({**found, "order": order})

    async def measured(self, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """The figures of some requests, with the energy per request."""
        found, joules = await self.joules(work)
        if joules is not None and found.get("requests"):
            found["joules_a_request"] = round(joules / found["requests"], 1)
        return found

    async def joules(self, work: Awaitable[_Found]) -> tuple[_Found, float | None]:
        """The result of some work, and the energy that the machine's GPUs used meanwhile."""
        before = self.energy()
        found = await work
        after = self.energy()
        return found, None if before is None or after is None else after - before

    # Engines and pools.

    async def stage(self, names: Sequence[str], dram_bytes: int) -> dict[str, TokenEngine]:
        """Engines of these variants over a pool; the last row's if they are the same."""
        scale = self.scale
        told = (repr(scale.config), repr(scale.arguments), repr(scale.settings))
        key = (tuple(names), dram_bytes, *told)
        if self._staged is None or self._staged[0] != key:
            await self.clear_stage()
            pool = await self._stage.enter_async_context(self.pool(dram_bytes))
            engines = await self._stage.enter_async_context(self.engines(names, pool.socket))
            self._staged = (key, engines)
        if self._absent:
            self.results.beside("did_not_start", self._absent)
        return self._staged[1]

    async def clear_stage(self) -> None:
        """End the engines and the pool that the last row has left."""
        self._staged = None
        await self._stage.aclose()

    @contextlib.asynccontextmanager
    async def pool(self, dram_bytes: int, disk_bytes: int = 0) -> AsyncIterator[PoolProcess]:
        """A pool for the length of a block."""
        disks = []
        if disk_bytes:
            self.require_room(disk_bytes)
            disks = [DiskSetting(str(self.directory("nvme")), disk_bytes)]
        with processes.running_pool(dram_bytes, disks) as pool, pool.client() as watch:
            self._watch = watch  # a pool without anyone would end meanwhile
            try:
                yield pool
            finally:
                self._watch = None

    @contextlib.asynccontextmanager
    async def engines(
        self, names: Sequence[str], socket: str, more: Mapping[str, object] | None = None
    ) -> AsyncIterator[dict[str, TokenEngine]]:
        """Engines of these variants, all at once on one GPU, each asked only in its turn.

        The first one fills the compile cache for the others. What vLLM's own tier does not support
        does not start; the others are compared without it.
        """
        started: dict[str, TokenEngine] = {}
        self._absent = {}

        async def begin(name: str) -> None:
            try:
                started[name] = await self.start(name, socket, more)
            except StartupError as error:
                if name != VLLM_CPU:
                    raise
                self._absent[name] = str(error)
                self.say(f"{name} did not start: {error}")

        try:
            await begin(names[0])
            await asyncio.gather(*map(begin, names[1:]))
            if self._absent:
                self.results.beside("did_not_start", self._absent)
            for name, engine in started.items():
                await self.warm(name, engine)
            yield {name: started[name] for name in names if name in started}
        finally:
            await asyncio.gather(*(engine.stop() for engine in started.values()))

    async def start(
        self,
        variant: str,
        socket: str,
        more: Mapping[str, object] | None = None,
        scale: RowScale | None = None,
    ) -> TokenEngine:
        """One engine; `more` are arguments of this row's own, `scale` is the row's if not given."""
        scale = scale or self.scale
        directory = scale.directory or model.write(self.place.parent, scale.config)
        wanted = {**variants.arguments(variant, scale, directory, socket), **(more or {})}
        log = self.place / f"{variant}.log"
        begun = time.monotonic()
        engine = await TokenEngine.start(wanted, log, scale.variables, scale.config["vocab_size"])
        self.say(f"{variant} is up after {time.monotonic() - begun:.1f} s")
        if variant in WITH_POOL and scale.settings.get("compress"):
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(engine.stop)
                await _require_encoding(engine)
                stack.pop_all()
        return engine

    async def warm(self, variant: str, engine: TokenEngine) -> None:
        """Warm an engine up; with Forebay, until it stores and has registered the slab."""
        for _ in range(2):
            await self._ask_something(engine, 8)
        if variant not in WITH_POOL:
            return
        begun, before = time.monotonic(), self.counters().get(_STORED, 0)
        # An engine shares nothing before it knows its weights.
        while self.counters().get(_STORED, 0) <= before:
            if time.monotonic() > begun + _REACH_S:
                raise StartupError("the engine shares nothing.")
            await self._ask_something(engine)
        slab_bytes = reading.tier_of(self.stats(), "dram")["cap_bytes"]
        while time.monotonic() < begun + 2 * _REACH_S:
            reach_bytes = (await engine.counts())["reach_bytes"]
            if reach_bytes < 0 or reach_bytes >= slab_bytes:
                break
            await asyncio.sleep(_LOOK_S)  # beside steps it would take longer
        self.say(
            f"{variant} shares, with its slab in reach, {time.monotonic() - begun:.1f} s later"
        )

    async def _ask_something(self, engine: TokenEngine, count: int = 1) -> None:
        self._warmed += 1
        small = replace(self.scale, requests=count)
        await requests.stateless(engine, small, min(count, 4), _WARM_SEED + self._warmed)
        await asyncio.sleep(0.1)

    # What was counted.

    async def counted(self, variant: str, engine: TokenEngine | None) -> Counted:
        """The counters of pool and connector; empty if the variant has no Forebay."""
        if engine is None or variant not in WITH_POOL:
            return {}
        return {"pool": self.counters(), "connector": {**await engine.counts()}}

    async def since(
        self, before: Counted, variant: str, engine: TokenEngine | None
    ) -> dict[str, Any]:
        """The growth of these counters, for a variant's results; empty without Forebay."""
        more = {}
        for who, counts in (await self.counted(variant, engine)).items():
            grown = {name: counts[name] - before[who].get(name, 0) for name in sorted(counts)}
            more[who] = {name: count for name, count in grown.items() if count}
        return {"counters": more} if more else {}

    def stats(self) -> dict[str, Any]:
        assert self._watch is not None
        return processes.pool_stats(self._watch)

    def counters(self) -> dict[str, float]:
        return reading.counters(self.stats())

    def settled(self) -> dict[str, float]:
        """The counters once nothing is stored or written any more."""
        assert self._watch is not None
        return processes.settled(self._watch, _QUIET_S)

    # The drive.

    def directory(self, name: str) -> Path:
        path = self.place / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def clear_drive(self) -> None:
        for name in ("nvme", "raw", "files"):
            shutil.rmtree(self.place / name, ignore_errors=True)

    def require_room(self, disk_bytes: int) -> None:
        """StartupError unless this many bytes may be written."""
        if disk_bytes > DISK_BYTES_MAX:
            raise StartupError("a row may use 40 GiB of the drive at most.")
        free = shutil.disk_usage(self.place).free
        if free < FREE_BYTES_MIN + disk_bytes:
            raise StartupError(f"only {free >> 30} GiB are free; a row leaves 15 GiB of them.")


async def _require_encoding(engine: TokenEngine) -> None:
    if not (await engine.counts()).get("encoded_groups"):
        raise StartupError(_NOT_ENCODED)
