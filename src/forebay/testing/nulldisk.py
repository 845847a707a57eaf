"""A drive that takes no time, to measure a pool when no drive is the limit.

Like a drive with DMA, it spends no CPU time on a payload's bytes. Files are sparse, in a directory
in memory; headers and tables are really kept, but of payloads only the length. A read leaves the
buffer as it is, so it is right only if all payloads have the same bytes and each slot has held one;
anything else fails its verification as usual.
"""

import os
from collections.abc import Sequence
from typing import Final

from forebay.sys.disk import Disk, FileStatus, Space
from forebay.sys.memory import PAGE_BYTES

PAYLOAD_BYTES_MIN: Final = 16 * PAGE_BYTES  # smaller buffers are kept
_SPACE_BYTES: Final = 1 << 60


class NullDisk(Disk):
    """A file system that has room for everything and keeps no payloads."""

    def open(
        self,
        directory: int,
        name: str,
        *,
        create: bool,
        direct: bool,  # noqa: ARG002 - what is kept lies in memory in any case
        write: bool,
    ) -> int:
        """Open without O_DIRECT."""
        return super().open(directory, name, create=create, direct=False, write=write)

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """As the real one for small buffers; large ones, for payloads, stay as they are."""
        done = 0
        for buffer in buffers:
            if len(buffer) < PAYLOAD_BYTES_MIN:
                count = super().read(descriptor, [buffer], offset + done)
            else:
                left = self.status(descriptor).size_bytes - offset - done
                count = max(0, min(len(buffer), left))
            done += count
            if count < len(buffer):
                break
        return done

    def write(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """As the real one for small buffers; large ones only count as written."""
        done = 0
        for buffer in buffers:
            if len(buffer) < PAYLOAD_BYTES_MIN:
                super().write(descriptor, [buffer], offset + done)
            done += len(buffer)
        return done

    def preallocate(self, descriptor: int, size_bytes: int) -> None:
        """Give the file this length, without reserving space."""
        os.ftruncate(descriptor, max(size_bytes, os.fstat(descriptor).st_size))

    def status(self, descriptor: int) -> FileStatus:
        """A file's status, with all blocks counted as allocated."""
        return _whole(super().status(descriptor))

    def status_of(self, directory: int, name: str) -> FileStatus:
        """As `status`, by name."""
        return _whole(super().status_of(directory, name))

    def space(self, directory: int) -> Space:  # noqa: ARG002
        """Practically unlimited space."""
        return Space(_SPACE_BYTES, _SPACE_BYTES)


def _whole(found: FileStatus) -> FileStatus:
    return found._replace(allocated_bytes=found.size_bytes)
