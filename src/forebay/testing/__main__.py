"""`python -m forebay.testing pool …`: the same pool on a disk that fails as told.

Takes every flag of `forebay pool`, and besides `--fault RULE`, again and again, and `--faults-file
FILE`, one rule a line. On SIGHUP all rules are forgotten and the file is read anew, so that faults
can be switched while it runs. `forebay.testing.faults` has the rules. With `--null-drive` its drive
takes no time and keeps no payloads (`forebay.testing.nulldisk`); that is for measurements only.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from forebay.cli.flags import Parser
from forebay.cli.pool import serve
from forebay.errors import SettingsError, StartupError
from forebay.sys.world import World
from forebay.testing.faultdisk import FaultDisk
from forebay.testing.faults import Fault, parse_fault
from forebay.testing.nulldisk import NullDisk

_log: Final = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a faulty pool and return its exit status."""
    try:
        parsed = _parser().parse_args(arguments)
        return int(parsed.run(parsed))
    except StartupError as error:
        print(f"forebay.testing: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 2


def _parser() -> Parser:
    parser = Parser(prog="python -m forebay.testing", description=__doc__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    pool = commands.add_parser("pool", help="a pool on a disk that fails as told")
    serve.add_flags(pool)
    pool.add_argument("--fault", action="append", default=[], metavar="RULE", help="what fails")
    pool.add_argument("--faults-file", metavar="FILE", help="rules, one a line; anew on SIGHUP")
    pool.add_argument("--null-drive", action="store_true", help="keep no payloads, at no cost")
    pool.set_defaults(run=_run)
    return parser


def _run(parsed: argparse.Namespace) -> int:
    if parsed.null_drive:
        return serve.serve(parsed, World(NullDisk()))
    disk = FaultDisk()
    for fault in [*map(parse_fault, parsed.fault), *_read(parsed.faults_file)]:
        disk.arm(fault)

    def switch() -> None:
        try:
            faults = _read(parsed.faults_file)
        except SettingsError as error:
            _log.warning("the faults stay as they are: %s", error)
            return
        disk.disarm()
        for fault in faults:
            disk.arm(fault)
        _log.info("%d faults are on", len(faults))

    return serve.serve(parsed, World(disk), lambda: listen_to_hangup(switch))


def listen_to_hangup(switch: Callable[[], None]) -> None:
    """Call `switch` after each SIGHUP, on a separate thread.

    The thread that the signal interrupts may hold locks that `switch` takes.
    """
    hangups = os.eventfd(0, os.EFD_CLOEXEC)

    def run() -> None:
        while True:
            os.eventfd_read(hangups)
            switch()

    threading.Thread(target=run, name="forebay-hangup", daemon=True).start()
    signal.signal(signal.SIGHUP, lambda _number, _frame: os.eventfd_write(hangups, 1))


def _read(path: str | None) -> list[Fault]:
    if path is None:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read ({type(error).__name__}).") from None
    return [parse_fault(line.strip()) for line in lines if line.strip()]


if __name__ == "__main__":
    sys.exit(main())
