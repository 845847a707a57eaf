"""Every row by its name."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Final

from forebay.bench.gpu.rows import cold, disk, headline, long_dialogs, memory, shaping, swap
from forebay.bench.gpu.run import RowRun
from forebay.bench.gpu.variants import MLA, WINDOWS

Row = Callable[[RowRun], Coroutine[None, None, None]]


async def _of_model(name: str, row: Row, run: RowRun) -> None:
    """A row for another kind of model; rows of one kind share their engines."""
    run.scale = run.scale.of_model(name)
    await row(run)


async def _compressed(row: Row, run: RowRun) -> None:
    """A row with KV encoded; its figures against those of the row itself say what that brings."""
    scale = run.scale.in_bfloat16()
    run.scale = replace(scale, settings={**scale.settings, "compress": True})
    await row(run)


_COMPRESSED: Final[dict[str, Row]] = {
    "nothing-to-reuse": memory.nothing_to_reuse,
    "dialogs": memory.dialogs,
    "dram-32k": memory.dram_32k,
    "disk-carries": disk.disk_carries,
    "working-set": disk.working_set,
}
ROWS: Final[dict[str, Row]] = {
    "nothing-to-reuse": memory.nothing_to_reuse,
    "dialogs": memory.dialogs_and_ceiling,
    "dram-32k": memory.dram_32k,
    "small-pages": memory.small_pages,
    "dialogs-cold": cold.dialogs_cold,
    "dialogs-drive": cold.dialogs_drive,
    "disk-carries-cold": cold.disk_carries_cold,
    "nvme-32k": disk.nvme_32k,
    "disk-carries": disk.disk_carries,
    "working-set": disk.working_set,
    "restart": disk.restart,
    "start-up": disk.start_up,
    "headline": headline.headline,
    "dram-32k-32b": headline.dram_32k_32b,
    "long-dialogs": long_dialogs.long_dialogs,
    "swap": swap.swap,
    "swap-alternating": swap.swap_alternating,
    "long-and-short": shaping.shaping,
    **{f"{name}-compress": partial(_compressed, row) for name, row in _COMPRESSED.items()},
    **{f"dram-32k-{name}": partial(_of_model, name, memory.dram_32k) for name in (MLA, WINDOWS)},
    **{f"dialogs-{name}": partial(_of_model, name, memory.dialogs) for name in (MLA, WINDOWS)},
}
