"""Every row by its name."""

from collections.abc import Callable, Coroutine
from typing import Final

from forebay.bench.gpu.rows import cold, disk, headline, memory
from forebay.bench.gpu.run import RowRun

ROWS: Final[dict[str, Callable[[RowRun], Coroutine[None, None, None]]]] = {
    "nothing-to-reuse": memory.nothing_to_reuse,
    "dialogs": memory.dialogs,
    "dram-32k": memory.dram_32k,
    "small-pages": memory.small_pages,
    "dialogs-cold": cold.dialogs_cold,
    "dialogs-drive": cold.dialogs_drive,
    "nvme-32k": disk.nvme_32k,
    "disk-carries": disk.disk_carries,
    "working-set": disk.working_set,
    "restart": disk.restart,
    "start-up": disk.start_up,
    "headline": headline.headline,
}
