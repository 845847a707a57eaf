"""Counts the uses of a directory's files, so that it is closed only after they have ended.

After a descriptor is closed, its number is given to another file, and whoever still used it would
write there. So everything that works on a directory, besides its readers and writers, counts as a
use, and no use begins once it is closing.
"""

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator

from forebay.barrier import Barrier


class DirectoryUses:
    """The uses of one directory. Any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards both fields
        self._count = 0
        self._is_closed = False

    def begin(self) -> bool:
        """Begin a use, which keeps the directory open until `end`; False if it is closing."""
        with self._changed:
            self._count += not self._is_closed
            return not self._is_closed

    def end(self) -> None:
        """End a use."""
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A use as a context; an OSError if the directory is closing."""
        if not self.begin():
            raise OSError(errno.ESHUTDOWN, "it is being closed")
        try:
            yield
        finally:
            self.end()

    def close(self, timeout_s: float) -> bool:
        """Begin no more uses, and wait for those under way; False if they take too long."""
        with self._changed:
            self._is_closed = True
            return self._changed.wait_for(lambda: not self._count, timeout_s)


class SideWork:
    """Work that may wait for a directory's medium, on a thread, one run at a time."""

    def __init__(
        self, name: str, work: Callable[[], None], uses: DirectoryUses, barrier: Barrier
    ) -> None:
        self._name = name
        self._work = work
        self._uses, self._barrier = uses, barrier
        self._is_busy = False

    def begin(self) -> None:
        """Run it now, unless it is running or no thread can be started; by one thread."""
        if self._is_busy:
            return
        self._is_busy = True
        thread = threading.Thread(target=self._run, name=f"forebay-{self._name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started now; the next call may do it
            self._is_busy = False

    def _run(self) -> None:
        try:
            with contextlib.suppress(OSError), self._uses.one():
                self._barrier.call(f"a drive's {self._name}", self._work)
        finally:
            self._is_busy = False
