"""Flags of a load: which workload, how it looks, how many clients, and where it goes."""

import argparse
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.bench.load.client import REQUEST_S
from forebay.bench.load.multi_round import MultiRoundQuestions
from forebay.bench.load.steps import LoadPlan
from forebay.bench.load.traces import AgentTrace, ChatTrace, RequestFile
from forebay.bench.load.workloads import Dialogs, Documents, Questions, Stateless, Workload
from forebay.bench.result.format import AbResult
from forebay.cli import flags
from forebay.errors import SettingsError
from forebay.plan.number import real, whole
from forebay.quantity import parse_count

CLIENTS_MAX: Final = 10_000
STEPS_MAX: Final = 100
DOUBLED: Final = "1,2,4,...,128"
_NUMBER: Final = "a number"
_WORKLOADS: Final[dict[str, type[Workload]]] = {
    kind.name: kind
    for kind in (
        Dialogs,
        Questions,
        MultiRoundQuestions,
        Documents,
        AgentTrace,
        ChatTrace,
        Stateless,
        RequestFile,
    )
}
# Every field of a workload has a flag of its name, except these two.
_RENAMED: Final = {"hold": "interleave", "is_template": "template"}
_MAY_BE_ZERO: Final = {"skew", "think"}
_DOCS: Final = {
    "turns": "turns of a dialog",
    "first_tokens": "its first message",
    "turn_tokens": "every later message",
    "answer_tokens": "an answer, exactly; without it, traces have their own",
    "hold": "dialogs that each client holds turn by turn, so that history leaves the GPU",
    "rate": "questions a second of all users",
    "system_tokens": "the shared system prompt",
    "history_tokens": "each user's history",
    "question_tokens": "a question",
    "num_rounds": "questions of a user",
    "qps": "questions a second of all users",
    "shared_system_prompt": "tokens that all users share",
    "user_history_prompt": "tokens of each user's own",
    "answer_len": "tokens of an answer",
    "time": "seconds of a step; after that no question begins",
    "documents": "how many there are",
    "document_tokens": "a document",
    "skew": "popularity of the n-th document: n ** -SKEW",
    "is_template": "the document before what is the user's own, so that it is shared",
    "prompt_tokens": "a prompt",
    "requests": "of each client",
    "trace": "agent sessions or chat requests",
    "file": "your own requests, JSONL",
    "think": "factor on pauses and times",
    "prompt_tokens_max": "leave out sessions with a longer prompt",
    "block_tokens": "tokens that stand for a block of the trace; less for a small model",
    "sessions": "at most so many of the file",
}


def add(parser: argparse.ArgumentParser) -> None:
    """Add all flags of a load."""
    load = parser.add_argument_group("load")
    load.add_argument(
        "--clients",
        "--num-users",
        metavar="LIST",
        type=clients_of,
        default=DOUBLED,
        help=f"how many at once, step by step; 24,48,72 or with ... between (default: {DOUBLED})",
    )
    seconds = flags.typed(lambda text: real("it", float(text)), _NUMBER)
    load.add_argument(
        "--seconds", metavar="N", type=seconds, help="of a step; after that no request begins"
    )
    load.add_argument(
        "--seed",
        metavar="TEXT",
        type=flags.UTF8,
        default="0",
        help="of all made-up text (default: 0)",
    )
    load.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=REQUEST_S,
        help=f"until a request counts as failed (default: {REQUEST_S:g})",
    )
    load.add_argument(
        "--plain", action="store_true", help="send standard parameters only: no ignore_eos"
    )
    group = parser.add_argument_group("workload")
    group.add_argument("--workload", choices=_WORKLOADS, help="(default: dialog)")
    for name, doc in _DOCS.items():
        _add_option(group, name, doc)


def _add_option(group: "argparse._ArgumentGroup", name: str, doc: str) -> None:
    """Add the flag of a field; its help lists the workloads that have it, with their defaults."""
    having = {kind: found for kind in _WORKLOADS if (found := _field(kind, name)) is not None}
    shown = [
        kind if found.default in {None, MISSING, False} else f"{kind} {found.default:g}"
        for kind, found in having.items()
    ]
    options: dict[str, Any] = {"help": f"{doc} ({'; '.join(shown)})", "dest": name}
    kind = next(iter(having.values())).type
    if kind is bool:
        options |= {"action": "store_true", "default": None}
    elif kind is Path:
        options |= {"metavar": "FILE", "type": Path}
    elif kind is float:
        zero = name in _MAY_BE_ZERO
        check = flags.typed(lambda text: real("it", float(text), zero=zero), _NUMBER)
        options |= {"metavar": "X", "type": check}
    else:
        options |= {"metavar": "N", "type": count_of()}
    group.add_argument(_flag(name), **options)


def _field(workload: str, name: str) -> "Field[Any] | None":
    if name == "hold" and workload != Dialogs.name:
        return None
    return next((each for each in fields(_WORKLOADS[workload]) if each.name == name), None)


def _flag(name: str) -> str:
    return "--" + _RENAMED.get(name, name).replace("_", "-")


def workload_of(parsed: argparse.Namespace) -> Workload:
    """The workload that the flags describe; SettingsError for a flag of another workload."""
    given = {name: value for name in _DOCS if (value := getattr(parsed, name)) is not None}
    workload = parsed.workload or Dialogs.name
    for name in given:
        if _field(workload, name) is None:
            having = " and ".join(kind for kind in _WORKLOADS if _field(kind, name) is not None)
            raise SettingsError(f"{_flag(name)} is for workload {having}, not for {workload}.")
    for each in fields(_WORKLOADS[workload]):
        if each.type is Path and each.name not in given:
            raise SettingsError(f"workload {workload} needs --{each.name} FILE.")
    return _WORKLOADS[workload](**given)


def plan_of(parsed: argparse.Namespace, *, stops_early: bool = True) -> LoadPlan:
    """The load that the flags describe."""
    workload = workload_of(parsed)
    return LoadPlan(
        parsed.clients, workload, flags.read_sla(parsed), parsed.seed, parsed.seconds, stops_early
    )


def add_prices(parser: "argparse._ActionsContainer") -> None:
    """Add `--gpus` and `--gpu-price`, for the report's GPU hours."""
    parser.add_argument("--gpus", metavar="N", type=count_of(), help="of each side, for GPU hours")
    price = flags.typed(lambda text: real("it", float(text), zero=True), _NUMBER)
    parser.add_argument(
        "--gpu-price", metavar="N", type=price, help="dollars a GPU and hour, for the cost of both"
    )


def priced(ab: AbResult, parsed: argparse.Namespace) -> AbResult:
    """The result with the GPUs and the price that the flags give, else unchanged."""
    price = ab.gpu_hour_price if parsed.gpu_price is None else parsed.gpu_price
    gpus = parsed.gpus or ab.gpus
    if parsed.gpu_price is not None and gpus is None:
        raise SettingsError("--gpu-price needs --gpus, the number of GPUs of each side.")
    return msgspec.structs.replace(ab, gpus=gpus, gpu_hour_price=price)


def count_of(least: int = 1) -> "flags.Typed[int]":
    return flags.typed(
        lambda text: whole("it", parse_count(text), least=least, most=10**9), "a whole number"
    )


def clients_of(text: str) -> tuple[int, ...]:
    """Parse numbers such as `1,2,4`, `1,2,4,...,128` or `24,48,72,...,120`."""
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
