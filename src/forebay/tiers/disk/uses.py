"""What uses a directory's files beside its readers and writers; closing them waits for that.

A descriptor's number is given to another file once it is closed: whoever still had it would write
there. So whatever works on a directory counts as a use of it, and none begins once it is closing.
"""

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator

from forebay.barrier import Barrier


class DirectoryUses:
    """The uses of one directory. Any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards both
        self._count = 0
        self._is_closed = False

    def begin(self) -> bool:
        """Keep the directory from being closed until `end`; False if it is closing already."""
        with self._changed:
            self._count += not self._is_closed
            return not self._is_closed

    def end(self) -> None:
        """End what has begun."""
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A use; an OSError that says so if the directory is closing."""
        if not self.begin():
            raise OSError(errno.ESHUTDOWN, "it is being closed")
        try:
            yield
        finally:
            self.end()

    def close(self, timeout_s: float) -> bool:
        """Let none begin and wait for those under way; False if they last too long."""
        with self._changed:
            self._is_closed = True
            return self._changed.wait_for(lambda: not self._count, timeout_s)


class SideWork:
    """Work that may wait for a directory's medium, on a thread of its own, one at a time."""

    def __init__(
        self, name: str, work: Callable[[], None], uses: DirectoryUses, barrier: Barrier
    ) -> None:
        self._name = name
        self._work = work
        self._uses, self._barrier = uses, barrier
        self._is_busy = False

    def begin(self) -> None:
        """Do it now, unless it is being done or no thread can be had; by one thread."""
        if self._is_busy:
            return
        self._is_busy = True
        thread = threading.Thread(target=self._run, name=f"forebay-{self._name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has none for us now: the next call may
            self._is_busy = False

    def _run(self) -> None:
        try:
            with contextlib.suppress(OSError), self._uses.one():
                self._barrier.call(f"a drive's {self._name}", self._work)
        finally:
            self._is_busy = False
