"""Result files: an unreadable one is a SettingsError; one is written whole or not at all."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.bench.result.format import AbResult, LoadResult
from forebay.errors import SettingsError, StartupError
from forebay.files import read_regular

FILE_BYTES_MAX: Final = 256 << 20


def read(path: Path) -> LoadResult | AbResult:
    """One result, or a pair of them; steps in ascending order of clients."""
    document = read_json(path)
    is_pair = isinstance(document, dict) and "steps" not in document
    try:
        if is_pair and {"off", "on"} <= document.keys():
            ab = msgspec.convert(document, AbResult)
            pair = {"off": _named(path, ab.off, "off"), "on": _named(path, ab.on, "on")}
            return msgspec.structs.replace(ab, **pair)
        return _named(path, msgspec.convert(document, LoadResult), path.stem)
    except msgspec.ValidationError as error:
        raise SettingsError(
            f"{path} is no benchmark result: {error}; it must hold 'steps', or 'off' and 'on' with"
            " 'steps' each (docs/bench-format.md)."
        ) from None


def read_pair(first: Path, second: Path | None = None) -> AbResult:
    """An A/B result, or two results, the first without and the second with the pool."""
    one = read(first)
    if second is None:
        if isinstance(one, LoadResult):
            raise SettingsError(
                f"{first} is one result, without 'off' and 'on'; name another to compare it with."
            )
        return one
    other = read(second)
    if not isinstance(one, LoadResult) or not isinstance(other, LoadResult):
        raise SettingsError("an A/B result holds both sides; name it by itself.")
    return AbResult(off=one, on=other)


def write(path: Path, content: str) -> None:
    """Replace a file as a whole, or not at all; only regular files may be replaced."""
    try:
        if path.exists() and not path.is_file():
            raise StartupError(f"{path} is not a regular file; name another.")
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
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever stands there
    """The content of a JSON file; a SettingsError if it has none."""
    try:
        return json.loads(read_regular(path, FILE_BYTES_MAX))
    except (ValueError, RecursionError):
        raise SettingsError(f"{path} is not JSON.") from None


def _named(path: Path, result: LoadResult, name: str) -> LoadResult:
    """With a name for people, and its steps in order."""
    steps = tuple(sorted(result.steps, key=lambda step: step.clients))
    if len({step.clients for step in steps}) < len(steps):
        raise SettingsError(f"{path} has two steps with the same number of clients.")
    return msgspec.structs.replace(result, steps=steps, name=result.name or name)
