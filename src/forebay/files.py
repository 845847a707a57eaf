"""Files that people name on the command line: regular ones only, and read up to a size.

A device or a pipe could give bytes without end, or never any. Whatever is wrong with a file, or
with its name, is a SettingsError.
"""

import stat
from pathlib import Path
from typing import BinaryIO

from forebay.errors import SettingsError


def open_regular(path: str | Path) -> BinaryIO:
    """Open the file at this path for reading; never blocks."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise SettingsError(f"'{path}' is not a regular file; name one.")
        return Path(path).open("rb")
    except OSError as error:
        raise SettingsError(f"'{path}' cannot be read: {error.strerror}.") from None
    except ValueError:
        raise SettingsError(f"'{path}' is no file's name.") from None


def read_regular(path: str | Path, bytes_max: int) -> bytes:
    """The whole content of a file, which may have `bytes_max` bytes at most."""
    with open_regular(path) as file:
        return read_opened(file, bytes_max)


def read_opened(file: BinaryIO, bytes_max: int) -> bytes:
    """The whole content of an open file, which may have `bytes_max` bytes at most."""
    try:
        content = file.read(bytes_max + 1)
    except OSError as error:
        raise SettingsError(f"'{file.name}' cannot be read: {error.strerror}.") from None
    if len(content) > bytes_max:
        raise SettingsError(f"'{file.name}' is larger than {bytes_max:,} bytes.")
    return content
