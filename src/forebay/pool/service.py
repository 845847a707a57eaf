"""A pool as a service: started by an operator, or by the first engine that finds none.

A pool that an engine starts runs in a session of its own, outlives that engine, and ends `linger_s`
after the last one. Its sizes apply to all engines: one that joins later with other settings logs
one line.
"""

import contextlib
import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from forebay.errors import StartupError
from forebay.pool.address import PoolAddress, create_log, find_address, prepare, take_lock
from forebay.pool.client import Client
from forebay.pool.client.session import REFUSED, UNTRUSTED, PoolSession, join
from forebay.pool.core.accounting.status import TierLife
from forebay.pool.core.pool import Pool, PoolOptions
from forebay.pool.core.recent.requests import RecentRequest
from forebay.pool.core.stack import TierOpener
from forebay.pool.core.tenants.registry import read_secret, why_unfit
from forebay.pool.encryption import Encryption
from forebay.pool.messages import RequestsQuery
from forebay.pool.policy.admission import LowerTier, WriteBudget
from forebay.pool.policy.learned import Learned
from forebay.pool.server.admission import Roles
from forebay.pool.server.limits import ServerLimits
from forebay.pool.server.server import PoolServer
from forebay.pool.session import ProbeTold
from forebay.pool.trace import Recorder
from forebay.quantity import format_size
from forebay.record.keyring import Keyring
from forebay.settings import PrefetchMode, Settings, parse_numa, parse_trace
from forebay.sys import processes, sockets
from forebay.sys.clock import Clock
from forebay.sys.machine.placement import NodePlacement
from forebay.sys.processes import Wake
from forebay.sys.world import World
from forebay.tiers.disk import Directory, DiskTier, Options
from forebay.tiers.hidden_names import HiddenNamesTier
from forebay.tiers.remote.options import RemoteOptions
from forebay.tiers.remote.tier import RemoteTier
from forebay.urls import RemoteUrl

COMMAND: Final = "forebay.cli"  # what an engine runs to start a pool: `python -m forebay.cli pool`
LOCK_FLAG: Final = "--inherited-lock"
_START_S: Final = 120.0  # a large directory is opened warm within this time
TAKEN_BYTES_PER_S: Final = 1e9  # DRAM is taken at this speed, or faster
_ANSWER_S: Final = 10.0  # how long a busy pool may take to answer
_LOOK_S: Final = 0.02  # how often to look for a pool that is starting
_TRACE_CLOSE_S: Final = 2.0
_log: Final = logging.getLogger(__name__)


class Service:
    """A pool that has started: its core, its socket and its lock. Owned by one thread."""

    def __init__(
        self,
        address: PoolAddress,
        lock: int,
        listener: socket.socket,
        pool: Pool,
        server: PoolServer,
    ) -> None:
        self.address = address
        self._lock, self._listener, self._pool, self._server = lock, listener, pool, server

    @classmethod
    def open(
        cls,
        settings: Settings,
        *,
        world: World | None = None,
        lock: int | None = None,
        limits: ServerLimits | None = None,
        operator_uids: Collection[int] = (),
    ) -> Self:
        """Start a pool; a StartupError says in one sentence why that failed.

        `lock` is set if an engine took it before it started this process. `operator_uids` are
        users, besides this one and root, who may clear and resize.
        """
        world, limits = world or World(), limits or ServerLimits()
        address = find_address(settings.socket)
        prepare(address)
        inherited, lock = lock, take_lock(address) if lock is None else lock
        if lock is None:
            raise StartupError(f"a pool is running at {address.path} already; stop it first.")
        with contextlib.ExitStack() as undo:
            if inherited is None:  # else kept: who finds it free reads the log
                undo.callback(processes.close, lock)
            wake = Wake()
            undo.callback(wake.close)
            recorder = Recorder(*parse_trace(settings.trace)) if settings.trace else None
            if recorder is not None:
                undo.callback(recorder.close, _TRACE_CLOSE_S)
            options = _options(settings, address, world)
            pool = Pool(options, options.new_policy(), wake, world)
            undo.callback(pool.close, 0.0)
            has_others = settings.allow_uid or operator_uids
            listener = _listen(address, 0o666 if has_others else 0o600, limits.backlog)
            undo.pop_all()
        roles = Roles.of(world.disk.user(), settings.allow_uid, operator_uids)
        server = PoolServer(pool, listener, wake, roles, limits=limits, clock=world.clock)
        server.recorder = recorder
        return cls(address, lock, listener, pool, server)

    def run(self, linger_s: float | None) -> None:
        """Serve until stopped, or until no engine was connected for `linger_s`."""
        self._server.run(linger_s)

    def stop(self) -> None:
        """Make `run` return; safe on any thread and in a signal handler."""
        self._server.stop()

    def answers_http_at(self, address: str) -> None:
        """Set the HTTP address that clients are told; does not wait."""
        self._server.http = address

    # For other threads. Each of these waits for the pool's thread; None: no answer in time.

    def stats(self, timeout_s: float) -> dict[str, Any] | None:
        """What `forebay stats --json` prints."""
        return self._server.call(self._server.stats, timeout_s)

    def probe(self, told: ProbeTold, timeout_s: float) -> list[tuple[str, int]] | None:
        """Begin to prove the data path; see `Core.probe`."""
        return self._server.call(partial(self._pool.probe, told), timeout_s)

    def scraped(self) -> None:
        """Note that somebody has read the metrics; does not wait."""
        self._server.post(self._pool.metrics.server.scrapes.add)

    def requests(self, after: int, last: int, timeout_s: float) -> list[RecentRequest] | None:
        """The last requests of engines, the newest last; they do not change any more."""
        query = RequestsQuery("", last, after)
        return self._server.call(partial(self._pool.requests, query), timeout_s)

    def close(self, timeout_s: float) -> None:
        """End connections, write what is worth keeping within the time, and close everything."""
        self._listener.close()
        sockets.remove_stale(self.address.path)
        self._server.close()
        self._pool.close(timeout_s)
        if self._server.recorder is not None:
            self._server.recorder.close(_TRACE_CLOSE_S)
        self._server.wake.close()
        processes.close(self._lock)


def socket_path(settings: Settings) -> str:
    """The socket of these settings' pool."""
    return find_address(settings.socket).path


def join_or_start(settings: Settings, timeout_s: float = _START_S) -> str:
    """The path of a pool that answers, started by us if there was none and `no_pool` says so.

    Waits until it does; a StartupError says why there is none. Call it before serving, never on a
    scheduler's thread.
    """
    clock = Clock()
    until = clock.monotonic() + timeout_s + settings.dram / TAKEN_BYTES_PER_S
    address = find_address(settings.socket)
    if settings.no_pool != "start":
        return _join(address, settings, clock)
    started = False
    while True:
        if _answers(address, settings, clock):
            if not started:
                _compare(address, settings)
            return address.path
        prepare(address)
        lock = take_lock(address)
        if lock is not None and started:
            processes.close(lock)
            raise StartupError(f"the pool could not begin: {_last_line(address)}")
        if lock is not None:
            _start(settings, address, lock)
            started = True
        if clock.monotonic() >= until:
            raise StartupError(f"no pool answered at {address.path} within {timeout_s:.0f} s.")
        clock.sleep(_LOOK_S)


def _join(address: PoolAddress, settings: Settings, clock: Clock) -> str:
    """The path of a pool that is there, or of one that may come if that is enough."""
    if not _answers(address, settings, clock):
        if settings.no_pool == "fail" or settings.strict:
            raise StartupError(
                f"no pool answers at {address.path}; start one with:"
                f" forebay pool --socket {address.path}"
            )
        _log.warning("no pool answers at %s; serving without it until one does", address.path)
    return address.path


def _start(settings: Settings, address: PoolAddress, lock: int) -> None:
    """Start a pool that holds our lock from its first moment."""
    log = -1
    try:
        log = create_log(address)
        arguments = ["pool", *_flags(settings, address), LOCK_FLAG, str(lock)]
        status = processes.spawn(COMMAND, arguments, [lock], log)
    except OSError as error:
        raise StartupError(f"no pool can be started ({error.strerror}).") from None
    finally:
        processes.close(lock)
        if log >= 0:
            processes.close(log)
    if status:
        raise StartupError(f"the pool could not begin: {_last_line(address)}")


def _flags(settings: Settings, address: PoolAddress) -> list[str]:
    """A pool's settings as its command line; contains no secret."""
    flags = ["--socket", address.path, "--dram", str(settings.dram)]
    for disk in settings.disk:
        flags += ["--disk", f"{os.path.abspath(disk.path)}:{disk.cap_bytes}"]  # noqa: PTH100
    for url in settings.remote:
        flags += ["--remote", str(url)]
    for uid in settings.allow_uid:
        flags += ["--allow-uid", str(uid)]
    flags += ["--linger", str(settings.linger_s)]
    flags += ["--read-depth", str(settings.read_depth), "--write-depth", str(settings.write_depth)]
    flags += ["--huge-pages" if settings.huge_pages else "--no-huge-pages"]
    flags += ["--numa", settings.numa]
    flags += ["--verify-dram" if settings.verify_dram else "--no-verify-dram"]
    flags += ["--disk-writes-a-day", str(settings.disk_writes_a_day)]
    flags += ["--disk-rated-life", str(settings.disk_rated_life)]
    flags += ["--prefetch", settings.prefetch]
    flags += ["--metrics-address", settings.metrics_address or "none"]
    if settings.metrics_token_file:
        flags += ["--metrics-token-file", os.path.abspath(settings.metrics_token_file)]  # noqa: PTH100
    flags += ["--metrics-requests", settings.metrics_requests]
    if settings.encryption:
        kind, _, place = settings.encryption.partition(":")
        place = os.path.abspath(place) if kind == "file" else place  # noqa: PTH100
        flags += ["--encryption", f"{kind}:{place}"]
    if settings.tenant_key_file:
        flags += ["--tenant-key-file", os.path.abspath(settings.tenant_key_file)]  # noqa: PTH100
    if settings.trace:
        path, size_bytes = parse_trace(settings.trace)
        flags += ["--trace", f"{os.path.abspath(path)}:{size_bytes}"]  # noqa: PTH100
    return flags


def _options(settings: Settings, address: PoolAddress, world: World) -> PoolOptions:
    tiers, lives = [], []
    encryption = Encryption(settings.encryption) if settings.encryption else None
    keyring = None if encryption is None else encryption.keyring
    if settings.disk:
        tiers.append(_hiding_names(_disk_tier(settings, world, keyring), keyring))
        lives.append(TierLife(settings.disk_writes_a_day, settings.disk_rated_life))
    host = processes.host_name(address.path)
    for number, url in enumerate(settings.remote, 1):
        name = "remote" if number == 1 else f"remote{number}"
        opener = _remote_tier(url, url.host or host, name, RemoteOptions(keyring=keyring), world)
        tiers.append(_hiding_names(opener, keyring))
        lives.append(TierLife())  # the wear of a store is not known here
    return PoolOptions(
        settings.dram,
        tuple(tiers),
        settings.huge_pages,
        settings.verify_dram,
        tuple(lives),
        encryption,
        _secret(settings),
        settings.tenant,
        partial(Learned, _lower_tiers(settings), PrefetchMode(settings.prefetch)),
        NodePlacement(*parse_numa(settings.numa)),
    )


def _hiding_names(opener: TierOpener, keyring: Keyring | None) -> TierOpener:
    if keyring is None:
        return opener
    return lambda listener: HiddenNamesTier(opener, keyring.names, listener)


def _secret(settings: Settings) -> bytes:
    """The secret that tenants' ids are made from; a StartupError if there can be no tenants."""
    if not settings.tenant_key_file:
        if settings.tenant:
            raise StartupError("tenants need a tenant_key_file; see docs/tenants.md.")
        return b""
    disk_bytes = sum(wanted.cap_bytes for wanted in settings.disk)
    store_bytes = min((url.cap_bytes for url in settings.remote), default=0)
    caps = {"dram": settings.dram, "disk": disk_bytes, "remote": store_bytes}
    unfit = why_unfit(settings.tenant, caps)
    if unfit is not None:
        raise StartupError(unfit)
    return read_secret(settings.tenant_key_file)


def _disk_tier(settings: Settings, world: World, keyring: Keyring | None) -> TierOpener:
    options = Options(
        read_depth=settings.read_depth, write_depth=settings.write_depth, keyring=keyring
    )
    directories = tuple(Directory(wanted.path, wanted.cap_bytes) for wanted in settings.disk)
    return lambda listener: DiskTier.open(directories, options, world, listener)


def _remote_tier(
    url: RemoteUrl, host: str, name: str, options: RemoteOptions, world: World
) -> TierOpener:
    return lambda listener: RemoteTier.open(str(url), host, options, world, listener, name=name)


def _lower_tiers(settings: Settings) -> list[LowerTier]:
    """The lower tiers as policies are told of them; all tenants share the write budget."""
    tiers = [
        LowerTier(url.cap_bytes, reused_only=not url.terms.send_all) for url in settings.remote
    ]
    if settings.disk:
        disk_bytes = sum(wanted.cap_bytes for wanted in settings.disk)
        a_day = settings.disk_writes_a_day
        tiers.insert(0, LowerTier(disk_bytes, shared=WriteBudget(a_day) if a_day else None))
    return tiers


def _listen(address: PoolAddress, mode: int, backlog: int) -> socket.socket:
    try:
        sockets.remove_stale(address.path)
        return sockets.listen(address.path, mode, backlog)
    except OSError as error:
        raise StartupError(
            f"{address.path} cannot be listened at ({error.strerror}); choose another --socket."
        ) from None


def _answers(address: PoolAddress, settings: Settings, clock: Clock) -> bool:
    until = clock.monotonic() + _ANSWER_S
    session = join(address.path, secrets.token_hex(16), clock, until, settings.allow_uid)
    if isinstance(session, PoolSession):
        session.close()
        return True
    if session.startswith((REFUSED, UNTRUSTED)):
        raise StartupError(session)
    return False


def _compare(address: PoolAddress, settings: Settings) -> None:
    """Log one line if the running pool differs from what these settings ask for."""
    with Client(address.path, pool_uids=settings.allow_uid) as client:
        stats = client.stats(_ANSWER_S)
    if not isinstance(stats, dict):
        return
    caps = {tier["name"]: tier["cap_bytes"] for tier in stats["tiers"]}
    wanted = {}  # nobody asked for a default
    if settings.dram != Settings().dram:
        wanted["dram"] = settings.dram
    if settings.disk:
        wanted["disk"] = sum(disk.cap_bytes for disk in settings.disk)
    for name, wanted_bytes in wanted.items():
        cap_bytes = caps.get(name)
        # One arena or region at the end may be missing.
        if isinstance(cap_bytes, int) and abs(cap_bytes - wanted_bytes) > wanted_bytes // 4:
            _log.warning(
                "the pool at %s has %s of %s and keeps it; %s were asked for",
                address.path,
                format_size(cap_bytes),
                name,
                format_size(wanted_bytes),
            )


def _last_line(address: PoolAddress) -> str:
    """The last line in the log of a pool that ended at once."""
    try:
        with Path(address.log_path).open(encoding="utf-8", errors="replace") as log:
            lines = deque((line.strip()[:1000] for line in log if line.strip()), maxlen=1)
    except OSError:
        lines = deque()
    return lines[0].removeprefix("forebay: ") if lines else "it said nothing."
