"""Result files: an unreadable one is a SettingsError; one is written whole or not at all."""

import os
import tempfile
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from forebay.bench.result.format import AbResult, LoadResult
from forebay.errors import SettingsError, StartupError

FILE_BYTES_MAX: Final = 256 << 20
_NONE: Final = msgspec.Raw()
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class _Kind(msgspec.Struct):
    """Enough of a document to see what it is."""

    steps: msgspec.Raw = _NONE
    off: msgspec.Raw = _NONE
    on: msgspec.Raw = _NONE


def read(path: Path) -> LoadResult | AbResult:
    """One result, or a pair of them; steps in ascending order of clients."""
    content = _content(path)
    kind = _decoded(path, content, _Kind)
    if not bytes(kind.steps) and bytes(kind.off) and bytes(kind.on):
        ab = _decoded(path, content, AbResult)
        return msgspec.structs.replace(
            ab, off=_named(path, ab.off, "off"), on=_named(path, ab.on, "on")
        )
    return _named(path, _decoded(path, content, LoadResult), path.stem)


def write(path: Path, content: str) -> None:
    """Replace a file, or leave it as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        written = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
            written.chmod(0o644)
            written.replace(path)
        finally:
            written.unlink(missing_ok=True)
    except OSError as error:
        raise StartupError(f"{path} cannot be written ({error.strerror}).") from None


def as_text(result: LoadResult | AbResult) -> str:
    """The file's content."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > FILE_BYTES_MAX:
        raise SettingsError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB.")
    return content


def _decoded(path: Path, content: bytes, kind: type[_Struct]) -> _Struct:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise SettingsError(
            f"{path} is no benchmark result: {error}; docs/bench-format.md has its fields."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise SettingsError(f"{path} is not JSON.") from None


def _named(path: Path, result: LoadResult, name: str) -> LoadResult:
    """With a name for people, and its steps in order."""
    steps = tuple(sorted(result.steps, key=lambda step: step.clients))
    if len({step.clients for step in steps}) < len(steps):
        raise SettingsError(f"{path} has two steps with the same number of clients.")
    return msgspec.structs.replace(result, steps=steps, name=result.name or name)
