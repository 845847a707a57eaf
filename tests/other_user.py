"""Another user of this machine: code that runs in a forked child under a user id that is not ours.

Only root can become another user, so tests that need one are skipped for everybody else.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

import pytest
from tests.pool_process import HANG_S

OTHER_UID: Final = 65534
THIRD_UID: Final = 65533
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
_fork: Final = multiprocessing.get_context("fork")  # the interpreter may not be others' to run


@contextmanager
def other_user(work: Callable[[Connection], object], uid: int = OTHER_UID) -> Iterator[Connection]:
    """Run `work` as another user; both ends of a pipe, ended with the block."""
    ours, theirs = _fork.Pipe()
    process = _fork.Process(target=_become, args=(uid, work, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join(HANG_S)
        ours.close()


def asked_by_other_user(work: Callable[[], object], uid: int = OTHER_UID) -> Any:
    """What `work` answers when another user does it."""
    with other_user(lambda pipe: pipe.send(work()), uid) as pipe:
        return received(pipe)


def received(pipe: Connection) -> Any:
    """What the other user says next; a test that waits for it in vain fails."""
    assert pipe.poll(HANG_S), "the other user says nothing"
    return pipe.recv()


def _become(uid: int, work: Callable[[Connection], object], pipe: Connection) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    work(pipe)
