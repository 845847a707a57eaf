"""`forebay pool`: the pool as a service, in the foreground."""

import argparse
import logging
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

from forebay import __version__
from forebay.cli import flags, logs
from forebay.cli.flags import Commands, Parser
from forebay.cli.pool.log import LogWriter
from forebay.errors import SettingsError, StartupError
from forebay.observe import observer
from forebay.observe.access import Access
from forebay.plan.number import whole
from forebay.pool.address import find_address, prepare
from forebay.pool.server.admission import Roles
from forebay.pool.service import LOCK_FLAG, Service
from forebay.quantity import format_size
from forebay.settings import Settings, parse_trace
from forebay.sys import processes
from forebay.sys.protection import confinement
from forebay.sys.world import World

_log: Final = logging.getLogger(__name__)
_FD_MAX: Final = (1 << 31) - 1
_CLOSE_S: Final = 20.0  # to write what is worth keeping; then the rest is dropped
_HTTP_S: Final = 1.0  # to end the thread that accepts HTTP clients
_LOG_S: Final = 1.0  # to write the last lines of the log
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)  # end the pool
_IGNORED: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # would end it by default
_SETTINGS: Final = (
    "dram",
    "disk",
    "remote",
    "socket",
    "allow_uid",
    "tenant_key_file",
    "verify_dram",
    "huge_pages",
    "numa",
    "read_depth",
    "write_depth",
    "disk_writes_a_day",
    "disk_rated_life",
    "metrics_address",
    "metrics_token_file",
    "metrics_requests",
    "prefetch",
    "encryption",
    "trace",
)
_EPILOG = """\
examples:
  forebay pool --dram 64GiB --disk /mnt/nvme/forebay:1TB
  forebay pool --dram 256GiB --disk /mnt/nvme0/forebay:3TB --disk /mnt/nvme1/forebay:3TB
  forebay pool --dram 64GiB --remote 'file:///mnt/shared/forebay?cap=2TiB'
  forebay pool --dram 16GiB --linger 600

Runs until SIGTERM or Ctrl-C, then writes what is worth keeping to disk, for up to 20 seconds. With
--linger it also ends after so many seconds without an engine. SIGHUP, SIGUSR1 and SIGUSR2 are
ignored: it outlives its terminal. Engines join it at a Unix socket; its metrics and health are
answered over HTTP at --metrics-address. Its log has one line a thing, as text or as one JSON object
(--log-format json). Exit status: 0 ended as asked, 2 could not begin.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "pool",
        description="Run the pool: host memory and drives that every engine of this host shares.",
        epilog=_EPILOG,
    )
    add_flags(parser)
    parser.set_defaults(run=_run)


def add_flags(parser: Parser) -> None:
    """Add the flags of a pool."""
    flags.add_settings(parser, _SETTINGS)
    parser.add_argument(
        "--linger",
        metavar="SECONDS",
        help="end after so many seconds without an engine (default: never)",
    )
    parser.add_argument(
        "--operator-uid",
        action="append",
        default=[],
        metavar="ID",
        type=flags.typed(int, "a user id"),
        help="a user, besides the pool's own and root, who may clear and resize it",
    )
    logs.add_flags(parser)
    descriptor = flags.typed(lambda text: whole("it", int(text), least=0, most=_FD_MAX), "a number")
    parser.add_argument(LOCK_FLAG, type=descriptor, help=argparse.SUPPRESS)  # an engine started us


def _run(parsed: argparse.Namespace) -> int:
    if parsed.inherited_lock is not None:
        processes.outlive()
    return serve(parsed, World())


def serve(
    parsed: argparse.Namespace, world: World, begun: Callable[[], None] = lambda: None
) -> int:
    """Run a pool in the foreground until a signal, or with --linger until no engine is left."""
    linger_s = None if parsed.linger is None else _seconds(parsed.linger)
    settings = flags.read_settings(parsed)
    processes.allow_descriptors()
    roles = Roles.of(world.disk.user(), settings.allow_uid, parsed.operator_uid)
    # Before anything is taken: a public address needs a token.
    access = Access.of(settings, roles.operators)
    if getattr(parsed, "owns_process", False):
        _confine(settings)
    log = LogWriter()
    line = "%(asctime)s %(levelname)s %(message)s"
    logs.start(line, log, form=parsed.log_format, level=parsed.log_level)
    signals: list[int] = []
    try:
        service = _open(parsed, settings, world, signals)
        _announce(service, settings)
        http = observer.start(settings, service, world.barrier, access)
        begun()
        try:
            service.run(linger_s)
        finally:
            for number in signals[:1]:
                _log.info("%s: the pool ends", signal.Signals(number).name)
            if http is not None:
                http.close(_HTTP_S)
            service.close(_CLOSE_S)
            _log.info("the pool at %s has ended", service.address.path)
    finally:
        log.drain(_LOG_S)
    return 0


def _confine(settings: Settings) -> None:
    """Give up rights that a pool does not need, before it has threads, so that all are bound."""
    address = find_address(settings.socket)
    prepare(address)
    confinement.drop_privileges()
    places = [address.path, *([parse_trace(settings.trace)[0]] if settings.trace else [])]
    directories = [os.path.dirname(os.path.abspath(place)) for place in places]  # noqa: PTH100, PTH120
    directories += [disk.path for disk in settings.disk]
    stores = (url.path for url in settings.remote if url.scheme == "file")
    confinement.write_only_in([*directories, *map(confinement.above_mount, stores)])


def _open(
    parsed: argparse.Namespace, settings: Settings, world: World, signals: list[int]
) -> Service:
    """Open a pool that signals end, and note these signals; StartupError if it cannot start."""
    service: Service | None = None

    def end(number: int, _frame: FrameType | None) -> None:
        if service is None:  # it has not served anybody, and a kill is safe at any time
            os._exit(0)
        signals.append(number)  # logged later: a handler should do as little as possible
        service.stop()

    handlers = {number: signal.signal(number, end) for number in _SIGNALS}
    handlers |= {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED}
    try:
        service = Service.open(
            settings,
            world=world,
            lock=parsed.inherited_lock,
            operator_uids=parsed.operator_uid,
        )
    except StartupError:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        raise
    return service


def _announce(service: Service, settings: Settings) -> None:
    places = [(disk.path, disk.cap_bytes) for disk in settings.disk]
    places += [(url.place, url.cap_bytes) for url in settings.remote]
    below = ", ".join(f"{path} {format_size(cap_bytes)}" for path, cap_bytes in places)
    _log.info(
        "serving at %s: DRAM %s, %s; forebay %s, process %d",
        service.address.path,
        format_size(settings.dram),
        below or "no disk",
        __version__,
        os.getpid(),
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise SettingsError(f"--linger: '{text[:40]}' is not a number of seconds.")
    return seconds
