"""Checks of the pool at the socket: that it answers, is trusted, is of one version, and helps."""

import os
import stat
from collections.abc import Iterator
from typing import Final

from forebay import __version__
from forebay.observe.doctor.facts import Facts
from forebay.observe.doctor.finding import (
    Check,
    Group,
    Observation,
    Severity,
    note,
    ok,
    problem,
    skipped,
    warning,
)
from forebay.pool.address import why_unsafe
from forebay.pool.client.session import REFUSED, UNTRUSTED
from forebay.pool.messages import PROTOCOL
from forebay.quantity import format_size
from forebay.settings import Settings
from forebay.sys.disk import printable
from forebay.sys.machine.mounts import listened_paths, lock_holder

_SHOWN_MAX: Final = 8  # engines, or releases
_POOLS_MAX: Final = 32
_LOOKUPS_MIN: Final = 100  # with fewer it means nothing that all have missed
_APART: Final = 4  # sizes may differ by a quarter: they are rounded to whole arenas or regions
_SAYS_NOTHING: Final = ("unknown", "", None)
_HAS_JOINED: Final = ("sharing", "unknown", "")  # an engine need not tell what it shares
_CHECK_DRIVE: Final = "Check the drive: the pool's log, dmesg, smartctl."
_CHECK_STORE: Final = "Look into the pool's log, and try the store with forebay remote check."
_NO_POOL: Final = "No pool runs there."


def _socket(facts: Facts) -> Iterator[Observation]:
    address = facts.pool.address
    if address is None:
        yield problem(facts.pool.why, "Choose another --socket.")
        return
    path = printable(address.path)
    if facts.pool.stats is not None:
        yield ok(f"A pool answers at {path}.")
        return
    try:
        mode = os.lstat(address.path).st_mode
    except OSError:
        yield ok(f"No pool runs at {path}; engines start one there, unless told otherwise.")
        return
    if not stat.S_ISSOCK(mode):
        yield problem(
            f"{path} is there and is no socket, so no pool can begin there.",
            "Remove it, or choose another --socket.",
        )
    elif facts.pool.why.startswith((REFUSED, UNTRUSTED)):
        yield ok(f"A pool listens at {path}, and does not let this command in (see below).")
    elif facts.is_listened_at:
        yield warning(
            f"A process listens at {path} and does not answer as a pool would.",
            "See its log: it is short of CPU time, stopped, or hangs; end it, and start another.",
        )
    elif lock_holder(f"{address.path}.lock", facts.root) is not None:
        yield ok(f"A pool is starting or ending at {path} (see below).")
    else:
        yield warning(
            f"{path} is left over from a pool that was killed: nobody listens there.",
            "Start a pool again: it takes the place of the old one, and finds what is on drives.",
        )


def _lock(facts: Facts) -> Iterator[Observation]:
    address = facts.pool.address
    if address is None:
        return
    path = f"{address.path}.lock"
    try:
        owner = os.lstat(path).st_uid
    except OSError:
        yield ok("There is no lock beside the socket yet.")
        return
    holder = lock_holder(path, facts.root)
    has_answered = facts.pool.stats is not None or facts.pool.why.startswith((REFUSED, UNTRUSTED))
    if owner != facts.disk.user() and not has_answered:
        yield problem(
            f"{printable(path)} belongs to user {owner}, so you cannot begin a pool there.",
            "Choose another --socket.",
        )
    elif holder is not None and not has_answered:
        yield warning(
            f"Process {holder} has locked {printable(path)}, and no pool answers: one is starting,"
            " ending or stopped.",
            f"See its log, {printable(address.log_path)} if an engine started it; if it stays so,"
            f" end it: kill {holder}",
        )
    else:
        yield ok("The lock beside the socket is as it should be.")


def _permissions(facts: Facts) -> Iterator[Observation]:
    address, why = facts.pool.address, facts.pool.why
    if address is None:
        return
    advice = "Choose a --socket in a directory of your own, mode 700; or give --allow-uid."
    try:
        unsafe = why_unsafe(address.path, facts.settings.allow_uid)
    except OSError as error:
        if address.is_default:
            yield ok(f"{printable(address.directory)} will be made.")
        else:
            directory = printable(address.directory)
            yield problem(
                f"{directory} cannot be used ({error.strerror}).", f"Run: mkdir -m 700 {directory}"
            )
        return
    if unsafe is not None:
        yield problem(f"The socket could be replaced by others: {printable(unsafe)}.", advice)
    elif why.startswith(UNTRUSTED):
        yield problem(f"T{why[1:]}".rstrip(".") + ".", advice)
    elif why.startswith(REFUSED) and "protocol" not in why:
        yield problem(
            f"T{why[1:]}".rstrip(".") + ".",
            "Start the pool with --allow-uid and this user's id, or run this as the pool's user.",
        )
    else:
        yield ok("Nobody but you and root can put something in the socket's place.")


def _version(facts: Facts) -> Iterator[Observation]:
    advice = "Stop the engines, restart the pool, and start the engines, all of one version."
    if facts.pool.why.startswith(REFUSED) and "protocol" in facts.pool.why:
        yield problem(f"T{facts.pool.why[1:]}", advice)
    elif facts.pool.stats is None:
        yield skipped(_NO_POOL)
    else:
        theirs = str(facts.pool.stats.get("forebay", "an older one"))
        protocol = facts.pool.stats.get("protocol", PROTOCOL)
        if (theirs, protocol) != (__version__, PROTOCOL):
            yield warning(
                f"The pool is Forebay {theirs}, protocol {protocol}; this command is {__version__},"
                f" protocol {PROTOCOL}.",
                advice,
            )
        else:
            yield ok(f"The pool is Forebay {theirs}, protocol {protocol}, as this command is.")


def _sizes(facts: Facts) -> Iterator[Observation]:
    """Whether the running pool has the sizes that are asked for; defaults do not count."""
    wanted = {
        "dram": facts.settings.dram if facts.settings.dram != Settings().dram else 0,
        "disk": sum(each.cap_bytes for each in facts.settings.disk),
    }
    caps = {each.get("name"): each.get("cap_bytes") for each in facts.pool.listed("tiers")}
    if not caps:
        yield skipped(_NO_POOL)
        return
    differ = [
        f"{format_size(cap)} of {name} where {format_size(wanted[name])} are asked for"
        for name, cap in caps.items()
        if name in wanted and isinstance(cap, int) and wanted[name]
        if abs(cap - wanted[name]) > wanted[name] // _APART
    ]
    if differ:
        yield warning(
            f"The running pool has {' and '.join(differ)}, and keeps what it has.",
            "Change it with forebay set, or restart the pool.",
        )
    else:
        yield ok("The running pool has the sizes that are asked for.")


def _volumes(facts: Facts) -> Iterator[Observation]:
    tiers = facts.pool.listed("tiers")
    found = [(tier, each) for tier in tiers for each in tier.get("volumes") or []]
    if not found:
        yield skipped("No running pool has drives.")
    for tier, volume in found:
        is_store = str(tier.get("name")).startswith("remote")
        advice = _CHECK_STORE if is_store else _CHECK_DRIVE
        path, errors = printable(str(volume.get("path"))), volume.get("errors") or 0
        if volume.get("is_on") is False:
            yield warning(
                f"The pool has switched {path} off: it failed too often, or does not answer.",
                advice,
            )
        elif errors:
            yield note(f"{path} has failed {errors} times.", advice)
        else:
            yield ok(f"{path} is in use and has not failed.")


def _engines(facts: Facts) -> Iterator[Observation]:
    if facts.pool.stats is None:
        yield skipped(_NO_POOL)
        return
    engines = [
        each
        for each in facts.pool.listed("engines")  # scripts join as well, without these fields
        if each.get("engine") or each.get("model") or each.get("sharing") not in _SAYS_NOTHING
    ]
    if not engines:
        yield note(
            "No engine has joined the pool.",
            "Start one with the same --socket, and look at its log.",
        )
    for engine in engines[:_SHOWN_MAX]:
        who = f"{engine.get('engine') or 'An engine'} with {engine.get('model') or 'its model'}"
        state = str(engine.get("sharing") or "")
        if state in _HAS_JOINED:
            yield ok(f"{who} has joined.")
        elif state == "hashing_weights":
            yield note(f"{who} is still hashing its weights.", "Wait; then it shares.")
        else:
            why = str(engine.get("why") or state).rstrip(".")
            yield warning(f"{who} shares nothing: {why}.", "See docs/compatibility.md.")
    releases = {str(each["engine"]) for each in engines if each.get("engine")}
    if len(releases) > 1:
        yield note(
            f"Engines of several releases have joined ({', '.join(sorted(releases)[:_SHOWN_MAX])}):"
            " they share space and no chunks.",
            "Run one release of vLLM, if they serve the same model.",
        )


def _hits(facts: Facts) -> Iterator[Observation]:
    """Whether anything is ever found; prompts, realms and salts themselves cannot be seen."""
    lookups = facts.pool.counted("lookups")
    known = sum(
        facts.pool.counted("lookup_chunks", found=tier.get("name", ""))
        for tier in facts.pool.listed("tiers")
    )
    if facts.pool.stats is None:
        yield skipped(_NO_POOL)
    elif not lookups:
        yield skipped("No engine has looked for a chunk yet.")
    elif lookups < _LOOKUPS_MIN or known:
        yield ok(f"Lookups so far: {lookups:,.0f}. Chunks that they found: {known:,.0f}.")
    else:
        yield warning(
            f"None of {lookups:,.0f} lookups has found anything.",
            "Look whether prompts come back at all, whether they differ near their beginning (a"
            " date, an id), whether clients send a cache_salt each, and whether engines have one"
            " realm; forebay why tells of each request.",
        )


def _others(facts: Facts) -> Iterator[Observation]:
    own = facts.pool.address.path if facts.pool.address else ""
    others = [
        path
        for path in listened_paths(facts.root)
        if path != own and lock_holder(f"{path}.lock", facts.root) is not None
    ]
    if not others:
        yield ok("No other pool runs on this host.")
        return
    names = ", ".join(printable(path) for path in others[:_POOLS_MAX])
    yield note(
        f"Another pool runs on this host, at {names}: it shares nothing with the one here.",
        "Give all engines that trust each other one socket, and stop the pool that is not used.",
    )


CHECKS: Final = (
    Check(
        "pool.socket",
        Group.POOL,
        "a socket that a killed pool left, a file in its place, or a pool that does not answer",
        Severity.PROBLEM,
        _socket,
    ),
    Check(
        "pool.lock",
        Group.POOL,
        "a lock that is held while no pool answers, or that is somebody else's",
        Severity.PROBLEM,
        _lock,
    ),
    Check(
        "pool.permissions",
        Group.POOL,
        "a socket that others could replace, a pool of a user who is not trusted, a pool that"
        " refuses this user",
        Severity.PROBLEM,
        _permissions,
    ),
    Check(
        "pool.version",
        Group.POOL,
        "a pool of another version, or of another protocol",
        Severity.PROBLEM,
        _version,
    ),
    Check(
        "pool.sizes",
        Group.POOL,
        "a running pool of other sizes than are asked for",
        Severity.WARNING,
        _sizes,
    ),
    Check(
        "pool.drives",
        Group.POOL,
        "a drive that the running pool has switched off, or that has failed",
        Severity.WARNING,
        _volumes,
    ),
    Check(
        "pool.engines",
        Group.POOL,
        "engines that have joined and share nothing; engines of several releases; none",
        Severity.WARNING,
        _engines,
    ),
    Check(
        "pool.hits",
        Group.POOL,
        "a hundred lookups of which none found anything: salts, realms, prompts that do not repeat",
        Severity.WARNING,
        _hits,
    ),
    Check("pool.others", Group.POOL, "another pool on this host", Severity.NOTE, _others),
)
