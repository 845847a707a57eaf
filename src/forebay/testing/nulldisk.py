"""A drive that takes no time, to measure what a pool does where no drive is the limit.

It does what a drive does that copies by itself: a payload's bytes cost the processor nothing. Files
are sparse ones in a directory in memory, where headers and tables are really kept; of payloads only
their length. A read leaves in the buffer what lies there, so it is right only where all payloads
have the same bytes and each slot has held one; what is not, fails its verification as ever.
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
        """Through the page cache."""
        return super().open(directory, name, create=create, direct=False, write=write)

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """As the real one for what is kept; the rest of the buffers stays as it is."""
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
        """As the real one for what is kept; the rest is gone, and counts as written."""
        done = 0
        for buffer in buffers:
            if len(buffer) < PAYLOAD_BYTES_MIN:
                super().write(descriptor, [buffer], offset + done)
            done += len(buffer)
        return done

    def preallocate(self, descriptor: int, size_bytes: int) -> None:
        """Make the file so long; nothing is reserved."""
        os.ftruncate(descriptor, max(size_bytes, os.fstat(descriptor).st_size))

    def status(self, descriptor: int) -> FileStatus:
        """With every block allocated, as a preallocated file has them."""
        return _whole(super().status(descriptor))

    def status_of(self, directory: int, name: str) -> FileStatus:
        """The same by name."""
        return _whole(super().status_of(directory, name))

    def space(self, directory: int) -> Space:  # noqa: ARG002
        """More than anyone wants."""
        return Space(_SPACE_BYTES, _SPACE_BYTES)


def _whole(found: FileStatus) -> FileStatus:
    return found._replace(allocated_bytes=found.size_bytes)
