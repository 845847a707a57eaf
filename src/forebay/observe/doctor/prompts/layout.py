"""The layout of recorded prompts: their lines and tools as hashes, and where dates and ids stand.

Promised: no text of a prompt is kept, only hashes, lengths and positions; work and memory grow with
the file, whose size is limited. Assumed: a file of JSON lines, each the body of a request as a
client sends it, or an object with such a body as its member `body`, as in files for batches.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from forebay.errors import SettingsError
from forebay.files import read_regular

FILE_BYTES_MAX: Final = 64 << 20
REQUESTS_MAX: Final = 10_000
HEAD_LETTERS: Final = 4096  # of a prompt's beginning, in which dates and ids are looked for
_LINES_MAX: Final = 4096  # of one prompt, from its beginning
_ID_DIGITS_MIN: Final = 4
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_MARK: Final = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?|\b\d{1,2}:\d\d(?::\d\d)?\b"
    rf"|\b{_MONTH}\.? \d{{1,2}}(?:,? \d{{4}})?\b|\b\d{{1,2}}\.? {_MONTH}\.?,? \d{{4}}\b)"
    r"|(?P<id>[0-9A-Za-z_-]{8,})"
)


class Mark(NamedTuple):
    """A date, a time or an id near the beginning of a prompt."""

    kind: str  # in words
    place: str  # the text of the prompt in which it is
    letter: int  # its position in that text, from 1


class PromptLine(NamedTuple):
    """A line of a prompt; blank ones are left out."""

    name: int  # the hash of its text
    plain: int  # the hash of its text without dates and ids
    letters: int
    mark: Mark | None  # the first in this line


@dataclass(frozen=True, slots=True)
class RecordedPrompt:
    """One request of a file."""

    number: int  # its line in the file, from 1
    lines: tuple[PromptLine, ...]
    tools: tuple[int, ...]  # hashes of the tools' definitions as written, in the order given
    tool_set: frozenset[int]  # hashes of the definitions with sorted members


def read_prompts(path: str | Path) -> tuple[RecordedPrompt, ...]:
    """All requests of a file; a SettingsError names the first line that is no request."""
    found: list[RecordedPrompt] = []
    for number, line in enumerate(read_regular(path, FILE_BYTES_MAX).split(b"\n"), 1):
        if not line.strip():
            continue
        if len(found) == REQUESTS_MAX:
            raise SettingsError(f"'{path}' has more than {REQUESTS_MAX:,} requests; give fewer.")
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            body = None
        if isinstance(body, dict) and isinstance(body.get("body"), dict):
            body = body["body"]
        if not isinstance(body, dict):
            raise SettingsError(
                f"'{path}' has no JSON object in line {number}; write the body of a request there."
            )
        found.append(recorded(number, body))
    return tuple(found)


def recorded(number: int, body: dict[str, Any]) -> RecordedPrompt:
    """The layout of a request's body."""
    tools = body.get("tools")
    listed = tools if isinstance(tools, list) else []
    return RecordedPrompt(
        number,
        tuple(each for each, _ in zip(_lines(body), range(_LINES_MAX), strict=False)),
        tuple(_hash(json.dumps(each)) for each in listed),
        frozenset(_hash(json.dumps(each, sort_keys=True)) for each in listed),
    )


def _lines(body: dict[str, Any]) -> Iterator[PromptLine]:
    head = HEAD_LETTERS
    for place, text in _texts(body):
        begun = 0
        for line in text.splitlines(keepends=True):
            words = line.strip()
            if words:
                yield _line(words, place, begun + len(line) - len(line.lstrip()), head)
            head -= len(line)
            begun += len(line)


def _line(words: str, place: str, begun: int, head: int) -> PromptLine:
    """The layout of one line; its first `head` letters belong to the prompt's head."""
    name = _hash(words)
    if head <= 0:
        return PromptLine(name, name, len(words), None)
    marks = [each for each in _MARK.finditer(words, 0, head) if _is_mark(each)]
    if not marks:
        return PromptLine(name, name, len(words), None)
    left, end = [], 0
    for each in marks:
        left.append(words[end : each.start()])
        end = each.end()
    kind = "a date or time" if marks[0]["time"] else "an id"
    mark = Mark(kind, place, begun + marks[0].start() + 1)
    return PromptLine(name, _hash("\0".join([*left, words[end:]])), len(words), mark)


def _is_mark(found: re.Match[str]) -> bool:
    """Whether this is a date, a time or an id: an id has digits, other words have few."""
    text = found["id"]
    return text is None or sum(letter.isdigit() for letter in text) >= _ID_DIGITS_MIN


def _texts(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of a prompt in the order in which an engine reads them, each with its name."""
    for name in ("system", "instructions"):
        yield from _content(name, body.get(name))
    for name in ("messages", "input"):
        messages = body.get(name)
        if isinstance(messages, list):
            for number, message in enumerate(messages, 1):
                if isinstance(message, dict):
                    role = message.get("role")
                    shown = f" ({role})" if role in _ROLES else ""
                    yield from _content(f"message {number}{shown}", message.get("content"))
        else:
            yield from _content(name, messages)
    yield from _content("prompt", body.get("prompt"))


def _content(place: str, content: object) -> Iterator[tuple[str, str]]:
    if isinstance(content, str):
        yield place, content
    elif isinstance(content, list):
        for number, part in enumerate(content, 1):
            text = part.get("text") if isinstance(part, dict) else None
            if isinstance(text, str):
                yield f"part {number} of {place}", text


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass"))
