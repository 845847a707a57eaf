"""A client of the running pool, for the commands that need one."""

import argparse
import shlex
import sys
from typing import Final, TypeVar

from forebay.cli import flags
from forebay.errors import StartupError
from forebay.pool.address import find_address
from forebay.pool.client import Client
from forebay.pool.client.session import REFUSED, UNANSWERED, UNTRUSTED
from forebay.sys import processes
from forebay.tiers.contract import Miss, MissReason

TIMEOUT_S: Final = 10.0
_Answer = TypeVar("_Answer")


def add_socket(parser: argparse.ArgumentParser) -> None:
    """Add `--socket`, `--allow-uid` and `--config`."""
    flags.add_settings(parser, ["socket", "allow_uid"])


def client_of(parsed: argparse.Namespace) -> Client:
    """A client of the pool that the settings name; a StartupError if there is none."""
    settings = flags.read_settings(parsed)
    path = find_address(settings.socket).path
    client = Client(path, pool_uids=settings.allow_uid, is_operator=True)
    if client.join(TIMEOUT_S):
        return client
    why = client.why
    client.close()
    if why.startswith((REFUSED, UNTRUSTED)):
        raise StartupError(why)
    if why == UNANSWERED:
        raise StartupError(f"the pool at {path} {_late(TIMEOUT_S)}.")
    if processes.is_locked(f"{path}.lock"):
        raise StartupError(f"a pool is starting or ending at {path}; see its log, and try again.")
    start = ["forebay", "pool", *(["--socket", settings.socket] if settings.socket else [])]
    raise StartupError(f"{why.rstrip('.')}; start one with: {shlex.join(start)}")


def answered(client: Client, outcome: _Answer | Miss, timeout_s: float = TIMEOUT_S) -> _Answer:
    """The pool's answer to a client; a StartupError if there is none."""
    if isinstance(outcome, Miss):
        if client.why.startswith(REFUSED):
            raise StartupError(client.why)
        late = outcome.reason is MissReason.DEADLINE
        raise StartupError(f"the pool {_late(timeout_s) if late else 'went away'}.")
    return outcome


def is_meant(parsed: argparse.Namespace, question: str) -> bool:
    """Whether to delete: asks if somebody can answer, else True."""
    if parsed.yes or parsed.json or sys.stdin is None or not sys.stdin.isatty():
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _late(timeout_s: float) -> str:
    return f"did not answer within {timeout_s:.0f} s; it is busy or stopped"
