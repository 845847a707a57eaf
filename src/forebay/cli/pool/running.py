"""A client of the running pool, for the commands that need one."""

import argparse
import shlex
import time
from typing import Final, TypeVar

from forebay.cli import flags
from forebay.errors import StartupError
from forebay.pool.client import Client
from forebay.pool.client.session import REFUSED, UNANSWERED, UNTRUSTED
from forebay.pool.service import socket_path
from forebay.sys import processes
from forebay.tiers.contract import Miss, MissReason

TIMEOUT_S: Final = 10.0
_AGAIN_S: Final = 0.05
_Answer = TypeVar("_Answer")


def add_socket(parser: argparse.ArgumentParser) -> None:
    """`--socket`, `--allow-uid` and `--config`."""
    flags.add_settings(parser, ["socket", "allow_uid"])


def client_of(parsed: argparse.Namespace) -> Client:
    """A client of the pool that the settings name; a StartupError if there is none."""
    settings = flags.read_settings(parsed)
    client = Client(socket_path(settings), pool_uids=settings.allow_uid, is_operator=True)
    until = time.monotonic() + TIMEOUT_S
    while not client.join(TIMEOUT_S):
        if client.why not in UNANSWERED or time.monotonic() >= until:
            break
        time.sleep(_AGAIN_S)
    else:
        return client
    why = client.why
    client.close()
    if why.startswith((REFUSED, UNTRUSTED)):
        raise StartupError(why)
    path = socket_path(settings)
    if processes.is_locked(f"{path}.lock"):
        raise StartupError(f"a pool is starting or ending at {path}; see its log, and try again.")
    start = ["forebay", "pool", *(["--socket", settings.socket] if settings.socket else [])]
    raise StartupError(f"{why.rstrip('.')}; start one with: {shlex.join(start)}")


def answered(outcome: _Answer | Miss, timeout_s: float = TIMEOUT_S) -> _Answer:
    """The pool's answer; a StartupError if there is none."""
    if isinstance(outcome, Miss):
        late = outcome.reason is MissReason.DEADLINE
        why = f"did not answer within {timeout_s:.0f} s" if late else "went away"
        raise StartupError(f"the pool {why}.")
    return outcome
