"""`forebay set`: change a running pool's caps."""

import argparse
import os

from forebay.cli.flags import Commands
from forebay.cli.pool import running
from forebay.errors import SettingsError, StartupError
from forebay.pool.service import TAKEN_BYTES_PER_S
from forebay.settings import parse_disk, parse_dram

_EPILOG = """\
examples:
  forebay set dram=128GiB
  forebay set disk=/mnt/nvme/forebay:2TB
  forebay set dram=64GiB disk=/mnt/nvme0/forebay:1TB disk=/mnt/nvme1/forebay:1TB

More DRAM is taken from the machine at once, a gigabyte or more a second; it can be raised 31 times,
up to the machine's memory. A directory's cap is at most the size of its file system. A lower cap is
reached by dropping what is least valuable and not in use. Directories are those that the pool was
started with. Exit status: 0 changed, 2 not.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "set",
        description="Change how much a running pool may hold.",
        epilog=_EPILOG,
    )
    parser.add_argument("caps", nargs="+", metavar="NAME=VALUE", help="dram=SIZE or disk=DIR:SIZE")
    running.add_socket(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    dram_bytes, disk = parse_caps(parsed.caps)
    with running.client_of(parsed) as client:
        timeout_s = running.TIMEOUT_S + (dram_bytes or 0) / TAKEN_BYTES_PER_S
        done = running.answered(client, client.resize(dram_bytes, disk, timeout_s), timeout_s)
    if not done.ok:
        raise StartupError(done.sentence)
    print(done.sentence)
    return 0


def parse_caps(caps: list[str]) -> tuple[int | None, list[tuple[str, int]]]:
    """New caps of DRAM and of directories, as `name=value` texts say them."""
    dram_bytes: int | None = None
    disk: dict[str, int] = {}
    for text in caps:
        name, equals, value = text.partition("=")
        if name == "dram" and equals and dram_bytes is None:
            dram_bytes = parse_dram(value)
        elif name == "disk" and equals:
            wanted = parse_disk(value)
            path = os.path.abspath(wanted.path)  # noqa: PTH100 - as the pool names it
            if path in disk:
                raise SettingsError(f"'{path[:80]}' is named twice; give each directory one size.")
            disk[path] = wanted.cap_bytes
        else:
            raise SettingsError(
                f"'{text[:80]}' cannot be set; write dram=SIZE, once, or disk=DIR:SIZE."
            )
    return dram_bytes, list(disk.items())
