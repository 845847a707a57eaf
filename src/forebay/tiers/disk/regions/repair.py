"""Repairs what an audit found: drops damaged records and keeps the sound ones.

A damaged region gets a new table of contents, of its sound records alone. The old one is wiped
first, so that a crash in between leaves a region that the next start walks. Files of others and of
other versions are left alone.
"""

import stat

from forebay.sys.disk import FILE_MODE, Disk
from forebay.sys.memory import PAGE_BYTES, padded
from forebay.tiers.disk.regions import region as regions
from forebay.tiers.disk.regions.audit import (
    Audit,
    FindingKind,
    LockedDirectory,
    RegionAudit,
    open_region,
)
from forebay.tiers.disk.regions.region import Region

_DIRECTORY_MODE = 0o700


def repair(disk: Disk, locked: LockedDirectory, found: Audit) -> list[str]:
    """Repair what can be repaired; returns a sentence for each thing done."""
    done = []
    if any(finding.kind is FindingKind.MODE for finding in found.others):
        disk.set_mode(locked.descriptor, _DIRECTORY_MODE)
        done.append(f"the directory has mode {_DIRECTORY_MODE:o} now")
    for region in found.regions:
        if region.is_ours and region.findings:
            try:
                done.append(f"{region.name} {_repair_region(disk, locked.descriptor, region)}")
            except OSError as error:
                done.append(f"{region.name} could not be repaired ({error.strerror})")
    return done


def _repair_region(disk: Disk, directory: int, found: RegionAudit) -> str:
    free_bytes = found.size_bytes - PAGE_BYTES - found.end  # a truncated file may have none
    if not found.records or padded(len(found.contents)) > free_bytes:
        disk.unlink(directory, found.name)
        return "had nothing that could be saved and was removed"
    descriptor = open_region(disk, directory, found.name, write=True)
    try:
        if stat.S_IMODE(disk.status(descriptor).mode) != FILE_MODE:
            disk.set_mode(descriptor, FILE_MODE)
        if {finding.kind for finding in found.findings} == {FindingKind.MODE}:
            return f"has mode {FILE_MODE:o} now"
        return _rewrite(disk, descriptor, found)
    finally:
        disk.close(descriptor)


def _rewrite(disk: Disk, descriptor: int, found: RegionAudit) -> str:
    """Wipe the footer, write the header and the table, then the footer that proves the table."""
    region = Region(0, found.name, found.generation, descriptor, found.size_bytes)
    region.tenant = found.tenant
    region.end = found.end
    region.contents = found.contents
    regions.unseal(disk, region)
    regions.write_header(disk, region)
    regions.seal(disk, region)
    return f"has a new table of contents with its {found.records} sound records"
