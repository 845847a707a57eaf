"""Sources of secrets: a file, a descriptor, a command or a variable; never a command line.

A source is written as `file:PATH`, `fd:NUMBER`, `command:WORDS` or `env:NAME`. If one fails, a
StartupError says so in one sentence, without showing anything of the secret.
"""

import contextlib
import os
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Final

from forebay.errors import SettingsError, StartupError

KINDS: Final = ("file", "fd", "command", "env")
READ_ONCE: Final = ("fd", "env")  # reading them again gives nothing new
_BYTES_MAX: Final = 1 << 16
_COMMAND_S: Final = 60.0
_UNSAFE: Final = stat.S_IWGRP | stat.S_IRWXO


def kind_of(source: str) -> str:
    """The kind of a source: the word before the colon."""
    return source.partition(":")[0]


def read_secret(source: str) -> str:
    """The text that a source gives. A variable is removed from this process's environment."""
    kind, _, place = source.partition(":")
    if kind == "file":
        content = _from_file(place)
    elif kind == "fd":
        content = _from_descriptor(int(place))
    elif kind == "command":
        content = _from_command(place)
    else:
        content = os.environ.pop(place, "").encode(errors="surrogateescape")
    if not content.strip():
        raise SettingsError(f"'{source[:80]}' gives nothing.")
    if len(content) > _BYTES_MAX:
        raise SettingsError(f"'{source[:80]}' gives more than {_BYTES_MAX >> 10} KiB.")
    try:
        return content.decode("ascii")
    except UnicodeDecodeError:
        raise SettingsError(f"'{source[:80]}' gives no plain text.") from None


def _from_file(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no file's name"
        raise SettingsError(f"'{path}' cannot be read: {why}.") from None
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SettingsError(f"'{path}' is not a regular file; name one.")
        if status.st_uid not in {os.geteuid(), 0}:  # verify: owner of the key file
            raise SettingsError(f"'{path}' belongs to another user; use a file of your own.")
        if status.st_mode & _UNSAFE:  # verify: mode of the key file
            raise SettingsError(f"'{path}' can be read by others; run: chmod 600 {path}")
        return os.read(descriptor, _BYTES_MAX + 1)


def _from_descriptor(number: int) -> bytes:
    try:
        with os.fdopen(number, "rb") as file:
            return file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"descriptor {number} cannot be read: {error.strerror}.") from None


def _from_command(words: str) -> bytes:
    try:
        ended = subprocess.run(
            shlex.split(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_COMMAND_S,
            check=False,
        )
    except OSError as error:
        raise StartupError(f"'{words[:80]}' cannot be run: {error.strerror}.") from None
    except subprocess.TimeoutExpired:
        raise StartupError(f"'{words[:80]}' took longer than {_COMMAND_S:.0f} s.") from None
    if ended.returncode:
        raise StartupError(f"'{words[:80]}' failed with exit status {ended.returncode}.")
    return ended.stdout


def write_new(path: str, text: str) -> None:
    """Replace or create a file for its owner alone, atomically.

    A StartupError if that fails.
    """
    target = Path(path)
    new = target.with_name(f".{target.name}.new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        new.replace(target)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no file's name"
        raise StartupError(f"'{path}' cannot be written: {why}.") from None
