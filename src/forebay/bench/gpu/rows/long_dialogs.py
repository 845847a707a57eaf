"""Many long dialogs at once: times by turn, without and with Forebay."""

from dataclasses import replace
from typing import Final

from forebay.bench.gpu.rows.ramp import Ramp
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import FOREBAY, GPU_ONLY

_DIALOGS: Final = (24, 48, 72)
_TINY_DIALOGS: Final = (2, 3)
_SEQUENCES: Final = 96  # at once in an engine: none of 72 dialogs waits for another to end


async def long_dialogs(run: RowRun) -> None:
    """Six turns to 5,500 tokens, so many dialogs at once; DRAM holds all of them.

    Both engines are up, and have each load in turn.
    """
    is_full = run.scale.name == "full"
    arguments = {**run.scale.arguments}
    if is_full:
        arguments["max_num_seqs"] = _SEQUENCES
    run.scale = replace(run.scale, arguments=arguments, dram_bytes=run.scale.slab_bytes)
    order = (GPU_ONLY, FOREBAY)
    ramp = Ramp(run, _DIALOGS if is_full else _TINY_DIALOGS, run.scale.dram_bytes, order)
    missing = {name: ramp.missing(name) for name in order}
    if any(missing.values()):
        engines = await run.stage(order, run.scale.dram_bytes)
        is_first = True
        for load in sorted({load for loads in missing.values() for load in loads}):
            repeat, clients = load
            for name in order if repeat % 2 == 0 else reversed(order):
                if load not in missing[name] or not ramp.may_begin(
                    name, clients, is_first=is_first
                ):
                    continue
                await ramp.ask(name, engines[name], clients, repeat)
                is_first = False
    ramp.report()
