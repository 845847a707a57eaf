"""Flags of a load: which workload, how it looks, how many clients, and where it goes."""

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forebay.bench.load.client import REQUEST_S
from forebay.bench.load.traces import AgentTrace, ChatTrace, ReplayOptions, RequestFile
from forebay.bench.load.workloads import Dialogs, Documents, Questions, Stateless, Workload
from forebay.errors import SettingsError
from forebay.plan.number import real, whole

CLIENTS_MAX: Final = 10_000
STEPS_MAX: Final = 100
DOUBLED: Final = "1,2,4,...,128"


@dataclass(frozen=True, slots=True)
class _Option:
    """A flag of some workloads, and what it is called there."""

    flag: str
    fields: dict[str, str]  # by workload
    doc: str
    kind: str = "count"  # count, real, path, switch


def _fields(field: str, *workloads: str) -> dict[str, str]:
    return dict.fromkeys(workloads, field)


_TRACES: Final = ("agent", "chat")
_OPTIONS: Final = (
    _Option("--turns", _fields("turns", "dialog", "qa"), "turns of a dialog (6; qa 5)"),
    _Option("--first-tokens", _fields("first_tokens", "dialog"), "its first message (1500)"),
    _Option("--turn-tokens", _fields("turn_tokens", "dialog"), "every later message (500)"),
    _Option(
        "--answer-tokens",
        _fields("answer_tokens", "dialog", "qa", "document", "stateless", "file", *_TRACES),
        "an answer, exactly (dialog, file 250; traces: as they say; else 100)",
    ),
    _Option(
        "--interleave",
        _fields("hold", "dialog"),
        "dialogs that each client holds turn by turn, so that history leaves the GPU (1)",
    ),
    _Option("--rate", _fields("rate", "qa"), "questions a second of all users (1)", "real"),
    _Option("--system-tokens", _fields("system_tokens", "qa"), "the shared system prompt (1000)"),
    _Option("--history-tokens", _fields("history_tokens", "qa"), "each user's history (10000)"),
    _Option("--question-tokens", _fields("question_tokens", "qa", "document"), "a question (50)"),
    _Option("--documents", _fields("documents", "document"), "documents (20)"),
    _Option("--document-tokens", _fields("document_tokens", "document"), "a document (8000)"),
    _Option(
        "--skew", _fields("skew", "document"), "popularity of the n-th: n ** -SKEW (1)", "zero"
    ),
    _Option(
        "--template",
        _fields("is_template", "document"),
        "the document before what is the user's own, so that it is shared",
        "switch",
    ),
    _Option("--prompt-tokens", _fields("prompt_tokens", "stateless"), "a prompt (1000)"),
    _Option(
        "--requests",
        _fields("requests", "document", "stateless"),
        "of each client (10; stateless 6)",
    ),
    _Option("--trace", _fields("path", *_TRACES), "agent sessions or chat requests", "path"),
    _Option("--file", _fields("path", "file"), "your own requests, JSONL", "path"),
    _Option("--think", _fields("think", *_TRACES), "factor on pauses and times (1)", "zero"),
    _Option(
        "--prompt-tokens-max",
        _fields("prompt_tokens_max", *_TRACES),
        "leave out sessions with a longer prompt",
    ),
    _Option(
        "--block-tokens",
        _fields("block_tokens", *_TRACES),
        "tokens that stand for a block of the trace (as it says); less for a small model",
    ),
    _Option("--sessions", _fields("sessions", "file", *_TRACES), "at most so many of the file"),
)
_MAKERS: Final[dict[str, Callable[..., Workload]]] = {
    "dialog": Dialogs,
    "qa": Questions,
    "document": Documents,
    "agent": lambda path, **rest: AgentTrace(path, ReplayOptions(**rest)),
    "chat": lambda path, **rest: ChatTrace(path, ReplayOptions(**rest)),
    "stateless": Stateless,
    "file": RequestFile,
}


def add(parser: argparse.ArgumentParser, clients: str | None = DOUBLED) -> None:
    """Every flag of a load; without `clients` the command has a default of its own."""
    load = parser.add_argument_group("load")
    load.add_argument(
        "--clients",
        metavar="LIST",
        default=clients,
        help=f"how many at once, step by step; 24,48,72 or with ... between (default: {DOUBLED})",
    )
    load.add_argument("--seconds", metavar="N", help="of a step; after that no request begins")
    load.add_argument(
        "--seed", metavar="TEXT", default="0", help="of all made-up text (default: 0)"
    )
    load.add_argument(
        "--timeout",
        metavar="SECONDS",
        default=str(REQUEST_S),
        help=f"until a request counts as failed (default: {REQUEST_S:g})",
    )
    load.add_argument(
        "--plain", action="store_true", help="send standard parameters only: no ignore_eos"
    )
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--workload", metavar="NAME", choices=sorted(_MAKERS), help=", ".join(_MAKERS)
    )
    for option in _OPTIONS:
        doc = f"{', '.join(option.fields)}: {option.doc}"
        if option.kind == "switch":
            group.add_argument(option.flag, action="store_true", default=None, help=doc)
        else:
            shown = {"path": "FILE", "count": "N"}.get(option.kind, "X")
            group.add_argument(option.flag, metavar=shown, help=doc)


def workload_of(parsed: argparse.Namespace, default: Workload | None = None) -> Workload:
    """The workload as the flags say it; a SettingsError for one that another workload has."""
    given = [
        (option, value)
        for option in _OPTIONS
        if (value := getattr(parsed, option.flag[2:].replace("-", "_"))) is not None
    ]
    if parsed.workload is None and not given and default is not None:
        return default
    name = parsed.workload or "dialog"
    values: dict[str, Any] = {}
    for option, value in given:
        if name not in option.fields:
            having = " and ".join(option.fields)
            raise SettingsError(f"{option.flag} is for workload {having}, not for {name}.")
        values[option.fields[name]] = _value(option, value)
    needs = {"agent": "--trace", "chat": "--trace", "file": "--file"}.get(name)
    if needs is not None and "path" not in values:
        raise SettingsError(f"workload {name} needs {needs} FILE.")
    return _MAKERS[name](**values)


def clients_of(text: str) -> tuple[int, ...]:
    """Numbers as `1,2,4`, or as `1,2,4,...,128` and `24,48,72,...,120`."""
    words = [word.strip() for word in text.replace("\N{HORIZONTAL ELLIPSIS}", "...").split(",")]
    found: list[int] = []
    for place, word in enumerate(words):
        if word == "...":
            if place != len(words) - 2 or len(found) < 3:
                raise SettingsError(f"--clients {text[:60]}: write ... as in {DOUBLED}.")
            found += _between(found[-3:], _client(words[-1]), text)
        else:
            found.append(_client(word))
    if found != sorted(set(found)) or len(found) > STEPS_MAX:
        raise SettingsError(
            f"--clients {text[:60]}: must ascend, in at most {STEPS_MAX} steps, as {DOUBLED}."
        )
    return tuple(found)


def seconds_of(flag: str, text: str) -> float:
    """A time in seconds."""
    return _number(flag, text)


def _between(last: list[int], end: int, text: str) -> list[int]:
    one, two, three = last
    found: list[int] = []
    if two * two == one * three and two > one:
        while (following := (found or last)[-1] * two // one) < end:
            found.append(following)
    elif three - two == two - one > 0:
        while (following := (found or last)[-1] + two - one) < end:
            found.append(following)
    else:
        raise SettingsError(f"--clients {text[:60]}: what stands before ... has no rule.")
    return found


def _client(word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", word):
        raise SettingsError(f"--clients: '{word[:40]}' is not a number of clients.")
    return whole("--clients", int(word), most=CLIENTS_MAX)


def _value(option: _Option, text: str) -> object:
    if option.kind == "switch":
        return True
    if option.kind == "path":
        return Path(text)
    if option.kind == "count":
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise SettingsError(f"{option.flag}: '{text[:40]}' is not a whole number.")
        return whole(option.flag, int(text))
    return _number(option.flag, text, zero=option.kind == "zero")


def _number(flag: str, text: str, *, zero: bool = False) -> float:
    try:
        return real(flag, float(text), zero=zero)
    except ValueError:
        raise SettingsError(f"{flag}: '{text[:40]}' is not a number.") from None
