"""Checks of the directories for chunks: usable, on a fit file system, with space, fast enough."""

import os
import shlex
from collections.abc import Iterator
from typing import Final

from forebay.observe.doctor.facts import DirectoryFacts, DriveSpeed, Facts
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
from forebay.plan.breakeven import KvSource, breakeven
from forebay.plan.ssd import GB
from forebay.quantity import format_size
from forebay.sys import scratch
from forebay.sys.disk import printable
from forebay.sys.machine.mounts import is_rotational

_NO_DISK: Final = "No --disk was given: chunks that leave DRAM are gone."
_POOL_HAS_NONE: Final = "The running pool has no drive: chunks that leave DRAM are gone."
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "fuse.sshfs"})
_LAYERED: Final = frozenset({"overlay", "aufs", "fuse-overlayfs", "fuse.fuse-overlayfs"})
_PROVEN: Final = frozenset({"ext4", "xfs"})
_TOKENS: Final = 8192  # length of the prefix for which the break-even is computed
_LATENCY_US: Final = 100.0  # of a read from a drive
_SHOWN_MAX: Final = 8  # leftovers that are named


def _usable(facts: Facts) -> Iterator[Observation]:
    if not facts.directories:
        yield skipped(_NO_DISK if facts.pool.stats is None else _POOL_HAS_NONE)
    ours = _volumes(facts)
    for each in facts.directories:
        sentence, _, advice = each.refusal.partition("; ")
        path = printable(each.setting.path)
        if os.path.realpath(each.setting.path) in ours:
            yield ok(f"{path} is what the running pool uses.")
        elif advice:
            yield problem(f"{sentence}.", f"{advice[0].upper()}{advice[1:].rstrip('.')}.")
        elif each.refusal:
            yield problem(each.refusal, "Check the drive: dmesg, smartctl.")
        else:
            yield ok(f"{path} is there, belongs to you alone and can be written.")


def _file_system(facts: Facts) -> Iterator[Observation]:
    for each in facts.directories:
        if not each.is_open:
            yield _not_looked_at(each)
        if each.refusal or each.mount is None:
            continue
        path, kind = printable(each.setting.path), each.mount.kind
        advice = "Use a directory on a local NVMe drive with XFS or ext4."
        if kind in _IN_MEMORY:
            yield warning(f"{path} is on {kind}, which is memory and no drive.", advice)
        elif kind in _REMOTE:
            yield warning(f"{path} is on {kind}, which is reached over a network.", advice)
        elif kind in _LAYERED:
            yield warning(
                f"{path} is on {kind}, the layers of a container's image.",
                "Mount a volume there, on a local NVMe drive with XFS or ext4.",
            )
        elif kind in _PROVEN:
            yield ok(f"{path} is on {kind}.")
        else:
            yield note(f"{path} is on {kind}; XFS and ext4 are those that tests have run on.")


def _direct(facts: Facts) -> Iterator[Observation]:
    for each in facts.directories:
        path = printable(each.setting.path)
        if each.is_direct:
            yield ok(f"{path} has O_DIRECT.")
        elif not each.is_open:
            yield _not_looked_at(each)
        elif each.is_direct is False:
            yield warning(
                f"{path} is on a file system without O_DIRECT, so that records go through the page"
                " cache: more CPU time, and memory besides --dram.",
                "Use a directory on XFS or ext4.",
            )


def _drive(facts: Facts) -> Iterator[Observation]:
    for each in facts.directories:
        if not each.is_open:
            yield _not_looked_at(each)
            continue
        if each.mount is None or (found := is_rotational(each.mount.device, facts.root)) is None:
            continue
        path = printable(each.setting.path)
        if found:
            yield note(
                f"The kernel takes the drive of {path} for a hard disk (virtual drives often say"
                " so).",
                "Believe the measured speed below; a real hard disk is of no use here.",
            )
        else:
            yield ok(f"The drive of {path} is solid-state.")


def _space(facts: Facts) -> Iterator[Observation]:
    """Compare caps with free space; directories on one file system share it."""
    by_device: dict[str, list[int]] = {}
    for number, each in enumerate(facts.directories):
        if not each.setting.cap_bytes:
            yield skipped(
                f"{printable(each.setting.path)} was not looked at: the running pool does not tell"
                " the size of each directory; give them with --disk."
            )
        elif each.space is None:
            yield _not_looked_at(each)
        elif each.mount is not None:
            by_device.setdefault(each.mount.device, []).append(number)
    for numbers in by_device.values():
        together = [facts.directories[number] for number in numbers]
        names = " and ".join(printable(each.setting.path) for each in together)
        cap_bytes = sum(each.setting.cap_bytes for each in together)
        space = together[0].space
        assert space is not None
        left_bytes = space.free_bytes + sum(each.held_bytes for each in together)
        if cap_bytes > space.total_bytes:
            yield problem(
                f"The file system of {names} has {format_size(space.total_bytes)} in all, and"
                f" {format_size(cap_bytes)} are asked for.",
                "Lower the size in --disk: a pool refuses a cap above its file system's size.",
            )
        elif cap_bytes > left_bytes:
            yield warning(
                f"{names}: {format_size(cap_bytes)} are asked for and {format_size(left_bytes)} can"
                " be had; what does not fit is dropped.",
                "Free some space, or lower the size in --disk.",
            )
        else:
            yield ok(f"{names}: {format_size(cap_bytes)} of {format_size(left_bytes)} to be had.")
        if len(together) > 1:
            yield note(
                f"{names} are on one file system, so one drive serves them all.",
                "Give each drive one directory.",
            )


def _in_use(facts: Facts) -> Iterator[Observation]:
    ours = _volumes(facts)
    for each in facts.directories:
        path = printable(each.setting.path)
        if not each.is_open:
            yield _not_looked_at(each)
            continue
        if each.lock_holder is None:
            yield ok(f"No other pool is using {path}.")
            continue
        if os.path.realpath(each.setting.path) in ours:
            yield ok(f"{path} is in use by the pool at the socket.")
            continue
        who = f"process {each.lock_holder}" if each.lock_holder else "another container"
        yield problem(
            f"{path} is in use by another pool, or by forebay check: {who} has locked it.",
            "Stop that one, or name another directory.",
        )


def _leftovers(facts: Facts) -> Iterator[Observation]:
    for each in facts.directories:
        if not each.is_open:
            yield _not_looked_at(each)
            continue
        path, found = printable(each.setting.path), scratch.leftovers(each.setting.path)
        if not found:
            yield ok(f"Nothing is left of earlier measurements in {path}.")
        else:
            names = " ".join(shlex.quote(printable(path)) for path in found[:_SHOWN_MAX])
            yield note(
                f"{path} has {len(found)} directories of measurements that were killed.",
                f"Unless one is under way, run: rm -r {names}",
            )


def _speed(facts: Facts) -> Iterator[Observation]:
    for path, speed in facts.speeds.items():
        if isinstance(speed, str):
            yield skipped(printable(speed))
        else:
            yield ok(
                f"{printable(path)} reads {_rate(speed.read_bytes_s)} and writes"
                f" {_rate(speed.write_bytes_s)}."
            )
    if facts.directories:
        yield _against_computing(facts)


def _against_computing(facts: Facts) -> Observation:
    """Whether reading from these drives is faster than computing."""
    shape = facts.inputs.model.shape if facts.inputs.model else None
    speeds = _by_drive(facts)
    if shape is None:
        return skipped("Not compared with computing: give --model, and --prefill-tps.")
    if not speeds:
        return skipped("Not compared with computing: no drive was measured.")
    # A prefix is read from all drives at once.
    read_bytes_s = max(1.0, sum(speeds.values()))
    found = breakeven(
        shape, facts.prefill_tps, _TOKENS, [KvSource("drives", read_bytes_s, _LATENCY_US)]
    )
    assumed = "" if facts.inputs.prefill_tps else ", which is assumed: give --prefill-tps"
    sentence = (
        f"Reading {shape.name} is faster than computing it from {_rate(found.even_bytes_s)} on, at"
        f" {facts.prefill_tps:,.0f} prompt tokens/s{assumed}; the drives read"
        f" {_rate(read_bytes_s)}"
    )
    if found.contests[0].speedup > 1:
        return ok(f"{sentence}.")
    return warning(
        f"{sentence}: engines would compute what is on them.",
        "Use faster drives, or several of them, one --disk each; or leave --disk out.",
    )


def _by_drive(facts: Facts) -> dict[str, float]:
    """Measured bytes read per second, by drive; several directories may share a drive."""
    found: dict[str, float] = {}
    for each in facts.directories:
        speed = facts.speeds[each.setting.path]
        if isinstance(speed, DriveSpeed):
            drive = each.mount.device if each.mount else each.setting.path
            found[drive] = max(found.get(drive, 0.0), speed.read_bytes_s)
    return found


def _rate(bytes_s: float) -> str:
    """A rate in GB/s, or in MB/s if it is below 0.1 GB/s."""
    return f"{bytes_s / GB:.2f} GB/s" if bytes_s >= GB / 10 else f"{bytes_s / GB * 1000:.3g} MB/s"


def _not_looked_at(each: DirectoryFacts) -> Observation:
    return skipped(f"{printable(each.setting.path)} was not looked at: it cannot be opened.")


def _volumes(facts: Facts) -> set[str]:
    """Real paths of the directories that the pool at the socket uses."""
    tiers = facts.pool.listed("tiers")
    return {
        os.path.realpath(str(volume.get("path")))
        for tier in tiers
        for volume in tier.get("volumes") or []
        if isinstance(volume, dict)
    }


CHECKS: Final = (
    Check(
        "disk.directory",
        Group.DRIVES,
        "a directory that is missing, somebody else's, open to others, or cannot be written",
        Severity.PROBLEM,
        _usable,
    ),
    Check(
        "disk.in_use",
        Group.DRIVES,
        "a directory that another pool has locked",
        Severity.PROBLEM,
        _in_use,
    ),
    Check(
        "disk.file_system",
        Group.DRIVES,
        "a directory in memory, on a network, or in a container's image",
        Severity.WARNING,
        _file_system,
    ),
    Check(
        "disk.direct",
        Group.DRIVES,
        "a file system without O_DIRECT",
        Severity.WARNING,
        _direct,
    ),
    Check("disk.drive", Group.DRIVES, "a hard disk", Severity.NOTE, _drive),
    Check(
        "disk.space",
        Group.DRIVES,
        "caps above what is free, or above the file system; directories on one drive",
        Severity.PROBLEM,
        _space,
    ),
    Check(
        "disk.leftovers",
        Group.DRIVES,
        "files of a measurement that was killed",
        Severity.NOTE,
        _leftovers,
    ),
    Check(
        "disk.speed",
        Group.DRIVES,
        "drives that read slower than the GPU computes this model's KV, as a second of reads and"
        " writes shows",
        Severity.WARNING,
        _speed,
    ),
)
