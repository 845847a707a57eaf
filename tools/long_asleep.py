"""The row nvme-32k without a GPU: one long prompt from NVMe, through a DRAM that holds half of it.

    make bench-asleep-long ASLEEP="--dir /mnt/nvme --speed 26000"

Scheduler, connectors, pool and drive are real, the GPU sleeps: see gpu_asleep. In a repeat a prompt
is computed, loaded whatever that takes, and loaded or recomputed as Forebay decides, both after the
pool has written it and DRAM was filled with another one; before each the drive is read raw. Prints
a line of JSON a repeat: TTFT of the three, what was read, and the two ratios of the row.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tools import gpu_asleep as asleep

from forebay.bench.gpu.sides import FORCED, FULL, GPU, OURS
from forebay.bench.raw import RawFiles, beside_a_slab
from forebay.engines.start import vllm as flags
from forebay.pool.client import Client
from forebay.settings import Settings

DRAM_BYTES: Final = 2 << 30
DISK_BYTES: Final = 32 << 30  # three repeats: then some are overwritten, and not all is written
RAW_BYTES: Final = 4 << 30
IO_BYTES: Final = 2 << 20
DEPTH: Final = 8
PIECES: Final = 8  # a long prompt is stored piece by piece, as fast as a drive takes it
LOOK_S: Final = 0.15


class Dialog:
    """Whatever is asked is answered with one token."""

    def token(self) -> int:
        return 17


class Prompt(asleep.Run):
    """One prompt and its first token."""

    def ask(self, name: str, prompt: list[int]) -> float:
        """Seconds until that came."""
        asked = self.send(name, prompt, 1, asleep.Asked(0, Dialog(), None, 0.0))
        while self.live or self.begun:
            self.step()
        until = time.monotonic() + LOOK_S  # for stores, which are told of with steps
        while self.engine.extra is not None and time.monotonic() < until:
            self.idle_step()
        return asked.first - asked.begun

    def ended(self, asked: asleep.Asked) -> None:
        """It has its token."""


class Rehearsal:
    """Engines that share a pool of little DRAM."""

    def __init__(self, engines: Mapping[str, asleep.Engine], client: Client, raw: RawFiles) -> None:
        self._engines = engines
        self._client = client
        self._raw = raw
        self._asked = 0

    def repeat(self, number: int) -> dict[str, Any]:
        """All sides, begun by another one each time."""
        words = random.Random(number)
        prompt, other = (
            [words.randrange(16, FULL.config["vocab_size"]) for _ in range(FULL.long_tokens)]
            for _ in range(2)
        )
        sides = list(self._engines)
        turn = number % len(sides)
        found = {side: self._measure(side, prompt, other) for side in sides[turn:] + sides[:turn]}
        better_s = min(found[GPU]["ttft_s"], found[FORCED]["ttft_s"])
        return {
            **found,
            "split_ttft_to_the_better": round(found[OURS]["ttft_s"] / better_s, 3),
            "forced_read_to_raw": round(found[FORCED]["read_gb_s"] / found[FORCED]["raw_gb_s"], 3),
        }

    def _measure(self, side: str, prompt: list[int], other: list[int]) -> dict[str, float]:
        engine = self._engines[side]
        if side == GPU:
            found = {"ttft_s": round(self._ask(engine, prompt), 4)}
            engine.scheduler.reset_prefix_cache()
            return found
        self._store_slowly(engine, prompt)
        self._store_slowly(engine, other)
        engine.scheduler.reset_prefix_cache()
        raw_gb_s = self._raw.read_through(DEPTH, FULL.long_tokens * FULL.token_bytes)
        before = self._read_bytes()
        ttft_s = self._ask(engine, prompt)
        read_bytes = self._read_bytes() - before
        return {
            "ttft_s": round(ttft_s, 4),
            "read_bytes": read_bytes,
            "read_gb_s": round(read_bytes / ttft_s / 1e9, 3),
            "raw_gb_s": round(raw_gb_s, 3),
        }

    def _ask(self, engine: asleep.Engine, prompt: list[int]) -> float:
        self._asked += 1
        return Prompt(engine).ask(str(self._asked), list(prompt))

    def _store_slowly(self, engine: asleep.Engine, prompt: list[int]) -> None:
        """Piece by piece, each written to the drive before the next comes."""
        step = len(prompt) // PIECES
        for stop in range(step, len(prompt) + step, step):
            self._ask(engine, prompt[:stop])
            before = -1
            while (now := self._stored()) != before:
                before = now
                time.sleep(LOOK_S)

    def _stored(self) -> int:
        stats: Any = self._client.stats(5)
        counters = stats["counters"]
        done = counters.get("disk.written", 0) + counters.get("stored.chunks", 0)
        return int(done - stats["dram"]["filling"])

    def _read_bytes(self) -> int:
        stats: Any = self._client.stats(5)
        return int(stats["counters"].get("disk.loaded_bytes", 0))


def main() -> None:
    arguments = asleep.options(__doc__, repeats=3, speed=26_000).parse_args()
    os.environ.update(VLLM_LOGGING_LEVEL="WARNING", PYTHONHASHSEED="0", HF_HUB_OFFLINE="1")
    place = Path(tempfile.mkdtemp(prefix="fb-", dir=arguments.dir))
    try:
        rehearse(arguments, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def rehearse(arguments: argparse.Namespace, place: Path) -> None:
    """All repeats, on one pool that starts empty."""
    (place / "raw").mkdir(mode=0o700)
    wanted = Settings(socket=str(place / "s"), dram=DRAM_BYTES)
    with asleep.pool_of(wanted, place, str(DRAM_BYTES), str(DISK_BYTES)) as client:
        plain, forced = (flags.transfer_config(wanted, wanted.socket) for _ in range(2))
        settings = forced["kv_connector_extra_config"]
        assert isinstance(settings, dict)
        settings["always_load"] = True
        extras = {GPU: None, FORCED: forced, OURS: plain}
        engines = {side: asleep.Engine(arguments, extra) for side, extra in extras.items()}
        for side in (FORCED, OURS):
            engines[side].identify()
        with beside_a_slab([place / "raw"], IO_BYTES, RAW_BYTES // IO_BYTES, DRAM_BYTES) as raw:
            rehearsal = Rehearsal(engines, client, raw)
            for number in range(arguments.repeats):
                print(json.dumps(rehearsal.repeat(number)), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # vLLM's threads would be waited for
