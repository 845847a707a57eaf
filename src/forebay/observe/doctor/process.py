"""Checks of what a pool's process and its container may have: descriptors, CPU time, threads.

They look at the running pool's process if it can be seen, else at our own.
"""

import os
from collections.abc import Iterator
from typing import Final

from forebay.observe.doctor.facts import Facts
from forebay.observe.doctor.finding import (
    Check,
    Group,
    Observation,
    Severity,
    ok,
    problem,
    warning,
)
from forebay.sys.machine import cgroups, limits
from forebay.sys.machine.limits import LimitName

_BESIDE_DESCRIPTORS: Final = 512  # connections, segments of memory, files of Python
_BESIDE_THREADS: Final = 32
_CORES_MIN: Final = 2.0


def _descriptors(facts: Facts) -> Iterator[Observation]:
    """A pool raises its limit up to the hard limit, and keeps every region open."""
    need = _BESIDE_DESCRIPTORS + sum(each.regions for each in facts.directories)
    limit = limits.process_limit(LimitName.DESCRIPTORS, facts.root, facts.pool_process)
    if limit is None or limit.hard is None or limit.hard >= need:
        yield ok(f"A pool needs up to {need:,} file descriptors and may have them.")
        return
    yield problem(
        f"A pool needs up to {need:,} file descriptors and may have {limit.hard:,}.",
        f"Raise the hard limit: ulimit -Hn {need} (systemd: LimitNOFILE=, podman: --ulimit"
        " nofile=).",
    )


def _cpu(facts: Facts) -> Iterator[Observation]:
    allowance = cgroups.cpu_allowance(facts.root, facts.pool_process)
    cores = float(os.cpu_count() or 1)
    if allowance is None or allowance.most >= min(cores, _CORES_MIN):
        yield ok("The container's CPU limit is no obstacle.")
        return
    yield warning(
        f"{allowance.group} allows {allowance.most:.2g} cores of CPU time: a pool that is made to"
        " pause answers late, and requests are computed instead.",
        f"Give the pool a CPU limit of {_CORES_MIN:.0f} or more, or none.",
    )


def _threads(facts: Facts) -> Iterator[Observation]:
    depth = facts.settings.read_depth + facts.settings.write_depth
    need = _BESIDE_THREADS + depth * len(facts.disks)
    allowance = cgroups.process_allowance(facts.root, facts.pool_process)
    left = need if facts.pool.stats is not None else 0  # its threads are counted already
    if allowance is None or allowance.most - allowance.used + left >= need:
        yield ok(f"A pool's {need} threads may be had.")
        return
    yield warning(
        f"{allowance.group} allows {allowance.most:.0f} processes and threads, of which"
        f" {allowance.used:.0f} are there, and a pool has up to {need}.",
        "Raise the limit of processes (podman: --pids-limit, systemd: TasksMax=).",
    )


CHECKS: Final = (
    Check(
        "limits.descriptors",
        Group.LIMITS,
        "fewer file descriptors (`ulimit -Hn`) than the drives have regions",
        Severity.PROBLEM,
        _descriptors,
    ),
    Check(
        "limits.cpu",
        Group.LIMITS,
        "a container that may use less than two cores",
        Severity.WARNING,
        _cpu,
    ),
    Check(
        "limits.threads",
        Group.LIMITS,
        "a container that may have fewer threads than a pool has",
        Severity.WARNING,
        _threads,
    ),
)
