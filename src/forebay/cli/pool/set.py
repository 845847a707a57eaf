"""`forebay set`: change a running pool's caps, and its tenants."""

import argparse
import os
from collections.abc import Sequence

from forebay import settings
from forebay.cli.flags import Commands
from forebay.cli.pool import running
from forebay.errors import SettingsError, StartupError
from forebay.pool.client.outcomes import AdminOutcome
from forebay.pool.service import TAKEN_BYTES_PER_S
from forebay.settings import parse_disk, parse_dram
from forebay.tenants import TenantSetting

_EPILOG = """\
examples:
  forebay set dram=128GiB
  forebay set disk=/mnt/nvme/forebay:2TB
  forebay set dram=64GiB disk=/mnt/nvme0/forebay:1TB disk=/mnt/nvme1/forebay:1TB
  forebay set tenants=/etc/forebay/pool.toml

More DRAM is taken from the machine at once, a gigabyte or more a second; it can be raised 31 times,
up to the machine's memory. A directory's cap is at most the size of its file system. A lower cap is
reached by dropping what is least valuable and not in use. Directories are those that the pool was
started with. With tenants=FILE the pool has the [[tenant]] tables of that file from now on, and no
others; what a tenant has above a lower cap leaves. Exit status: 0 changed, 2 not.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "set",
        description="Change how much a running pool, and each of its tenants, may hold.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "caps", nargs="+", metavar="NAME=VALUE", help="dram=SIZE, disk=DIR:SIZE or tenants=FILE"
    )
    running.add_socket(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    caps, tenants = _tenants_in(parsed.caps)
    dram_bytes, disk = parse_caps(caps)
    with running.client_of(parsed) as client:
        timeout_s = running.TIMEOUT_S + (dram_bytes or 0) / TAKEN_BYTES_PER_S
        if caps:
            done = client.resize(dram_bytes, disk, timeout_s)
            _say(running.answered(client, done, timeout_s))
        if tenants is not None:
            done = client.set_tenants(tenants, timeout_s)
            _say(running.answered(client, done, timeout_s))
    return 0


def _say(done: AdminOutcome) -> None:
    if not done.ok:
        raise StartupError(done.sentence)
    print(done.sentence)


def _tenants_in(words: list[str]) -> tuple[list[str], Sequence[TenantSetting] | None]:
    """The words without `tenants=FILE`, and the tenants in that file; None without one."""
    files = [word.partition("=")[2] for word in words if word.startswith("tenants=")]
    if len(files) > 1:
        raise SettingsError("tenants are named twice; name one file.")
    rest = [word for word in words if not word.startswith("tenants=")]
    return rest, settings.build([settings.from_file(files[0])]).tenant if files else None


def parse_caps(caps: list[str]) -> tuple[int | None, list[tuple[str, int]]]:
    """The new caps of DRAM and of directories in `name=value` texts."""
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
                f"'{text[:80]}' cannot be set; write dram=SIZE, once, or disk=DIR:SIZE, or"
                " tenants=FILE."
            )
    return dram_bytes, list(disk.items())
