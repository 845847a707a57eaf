"""`forebay check`: verify every record of a directory that no pool is using."""

import argparse
import json
from typing import Any, Final

from forebay.cli import flags, progress
from forebay.cli.flags import Commands
from forebay.quantity import format_size
from forebay.sys.disk import Disk, printable
from forebay.tiers.disk.regions import audit as audits
from forebay.tiers.disk.regions.audit import Audit
from forebay.tiers.disk.regions.repair import repair

_SHOWN_MAX: Final = 50  # findings in readable output; --json has all
_EPILOG = """\
examples:
  forebay check /mnt/nvme/forebay
  forebay check /mnt/nvme/forebay --json
  forebay check /mnt/nvme/forebay --repair

Changes nothing without --repair. With it, a region that has something wrong in it gets a new table
of contents of its sound records; files of others are left alone. A pool does as well without
repair: what is damaged is a miss. Exit status: 0 clean (or all repaired), 1 something is wrong, 2
could not begin, for example because a pool is using the directory.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "check",
        description="Read and verify every record in a directory that no pool is using.",
        epilog=_EPILOG,
    )
    parser.add_argument("directory", metavar="DIR", help="a directory that a pool has used")
    parser.add_argument("--repair", action="store_true", help="drop what is damaged")
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    disk = Disk()
    locked = audits.lock_directory(disk, parsed.directory)
    try:
        with progress.shown() as show:
            found = _audit(disk, locked, show)
            repaired: list[str] = []
            remaining = found
            if parsed.repair and found.findings:
                repaired = repair(disk, locked, found)
                remaining = _audit(disk, locked, show)
    finally:
        audits.unlock_directory(disk, locked)
    directory = printable(parsed.directory)
    if parsed.json:
        print(json.dumps(_as_json(directory, found, repaired, remaining), indent=2))
    else:
        print(_readable(directory, found, repaired, remaining))
    return 1 if remaining.findings else 0


def _audit(disk: Disk, locked: audits.LockedDirectory, show: progress.Show) -> Audit:
    return audits.audit(
        disk,
        locked,
        lambda done, total: show(f"{format_size(done)} verified", done / max(1, total)),
    )


def _as_json(directory: str, found: Audit, repaired: list[str], remaining: Audit) -> dict[str, Any]:
    return {
        "directory": directory,
        "clean": not remaining.findings,
        "regions": len(remaining.regions),
        "records": sum(region.records for region in remaining.regions),
        "erased": sum(region.erased for region in remaining.regions),
        "payload_bytes": sum(region.payload_bytes for region in remaining.regions),
        "findings": [finding._asdict() for finding in found.findings],
        "repaired": repaired,
        "remaining": [finding._asdict() for finding in remaining.findings],
    }


def _readable(directory: str, found: Audit, repaired: list[str], remaining: Audit) -> str:
    lines = [str(finding) for finding in found.findings[:_SHOWN_MAX]]
    if len(found.findings) > _SHOWN_MAX:
        lines.append(f"and {len(found.findings) - _SHOWN_MAX} more; --json lists all")
    lines += [f"repaired: {sentence}" for sentence in repaired]
    if repaired:
        lines += [f"remains: {finding}" for finding in remaining.findings[:_SHOWN_MAX]]
    records = sum(region.records for region in remaining.regions)
    size = format_size(sum(region.payload_bytes for region in remaining.regions))
    state = f"{len(remaining.findings)} things are wrong" if remaining.findings else "clean"
    regions = "1 region" if len(remaining.regions) == 1 else f"{len(remaining.regions)} regions"
    lines.append(f"{directory}: {records} sound records ({size}) in {regions}; {state}")
    return "\n".join(lines)
