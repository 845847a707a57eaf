"""`forebay rotate`: new keys for everything that is encrypted from now on."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from forebay.cli.flags import Commands
from forebay.cli.pool import running
from forebay.errors import SettingsError, StartupError
from forebay.pool.encryption import shown
from forebay.record.keyring import MASTERS_MAX, MasterKeys, new_word
from forebay.sys.protection import secret_source

_TIMEOUT_S: Final = 120.0  # a command that gives keys may take a minute
_EPILOG = """\
examples:
  forebay rotate --new-key /etc/forebay/keys    makes the file, or puts a new key first in it
  forebay rotate                                the pool reads its keys again

With --new-key nobody else is told: run it without, on every host that has the file, afterwards.
What was encrypted before stays readable while its key is in the file; records in directories do not
need the old key any more once the pool has rotated, records in shared stores do until they are
evicted there. Keep a copy of the file: what is encrypted is lost without it. docs/encryption.md has
more. Exit status: 0 done, 2 not.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "rotate",
        description="Encrypt new records under new keys; old records stay readable.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--new-key", metavar="FILE", help="only make a new key, and put it first in this file"
    )
    running.add_socket(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    if parsed.new_key is not None:
        print(_add_key(parsed.new_key))
        return 0
    with running.client_of(parsed) as client:
        done = running.answered(client, client.rotate(_TIMEOUT_S), _TIMEOUT_S)
    if not done.ok:
        raise StartupError(done.sentence)
    print(done.sentence)
    return 0


def _add_key(path: str) -> str:
    """Put a new key before those in a file, or create the file; returns what was done."""
    lines = [new_word("names"), new_word("key")]
    if Path(path).exists():
        text = secret_source.read_secret(f"file:{path}")
        with _named(path):
            count = len(MasterKeys.parse(text).masters)
        if count == MASTERS_MAX:
            raise SettingsError(f"'{path}' has {count} keys already; remove the last ones.")
        before, names, after = text.partition("names=")
        lines = [f"{before}{new_word('key')}", f"{names}{after}".rstrip()]
    content = "\n".join(lines) + "\n"
    secret_source.write_new(path, content)
    keys = MasterKeys.parse(content)
    return f"{path}: key {shown(keys)} is the current one of {len(keys.masters)}."


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except SettingsError as error:
        raise SettingsError(f"'{path}': {error}") from None
