"""`forebay why`: what became of the last requests, in words, and what to do about it."""

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from forebay.cli import flags
from forebay.cli.flags import Commands
from forebay.cli.pool import running
from forebay.decisions import WORDS, decision_of
from forebay.errors import SettingsError
from forebay.pool.client import Client
from forebay.pool.messages import REQUEST_LETTERS_MAX, REQUESTS_KEPT
from forebay.report.escaping import escaped
from forebay.report.page import Table
from forebay.report.text import LINE_LETTERS, plain
from forebay.tiers.contract import Miss

_LAST: Final = 10
_FOLLOW_S: Final = 0.5  # between two looks
_NAMED_MAX: Final = 20  # blocks that one name may print
_HEAD: Final = ("time", "request", "prompt", "engine", "pool", "computed", "waited", "why")
_NAMES: Final = (0, 1, 7)  # columns of text
_ID_LETTERS: Final = 28
_EPILOG = """\
examples:
  forebay why                          the last ten requests, a line each
  forebay why chatcmpl-7f3a            one request, with reasons and advice
  forebay why --last 100 --json
  forebay why --follow                 each request as its fate is decided; Ctrl-C ends it

The pool keeps the last 1,000 requests, without tokens, text or keys. Times saved are estimates from
the speed that the engine has shown. docs/why.md explains every reason. Exit status: 0 found, 1 no
such request, 2 no pool.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "why",
        description="Say what became of the last requests of all engines, and why.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "request",
        nargs="?",
        default="",
        type=flags.UTF8,
        metavar="REQUEST",
        help="a request's id, or its beginning",
    )
    parser.add_argument(
        "--last", type=int, metavar="N", help=f"so many, the latest (default: {_LAST})"
    )
    parser.add_argument(
        "--follow", action="store_true", help="go on with requests as they are decided"
    )
    running.add_socket(parser)
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    if parsed.last is not None and not 1 <= parsed.last <= REQUESTS_KEPT:
        raise SettingsError(f"--last: a number from 1 to {REQUESTS_KEPT} is wanted.")
    if len(parsed.request) > REQUEST_LETTERS_MAX:
        raise SettingsError(f"a request's id has at most {REQUEST_LETTERS_MAX} letters here.")
    last = parsed.last or (_NAMED_MAX if parsed.request else _LAST)
    with running.client_of(parsed) as client:
        found = running.answered(
            client, client.requests(parsed.request, last, 0, running.TIMEOUT_S)
        )
        if parsed.follow:
            _follow(client, parsed, found)
    if parsed.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_lines(found, parsed.request)))
    return 0 if found["requests"] or not parsed.request else 1


def _follow(client: Client, parsed: argparse.Namespace, found: Mapping[str, Any]) -> None:
    """Print requests as they come, until interrupted; a pool that went away is waited for."""
    is_there = True
    _print_followed(parsed, found)
    after = int(found["newest"])
    while True:
        time.sleep(_FOLLOW_S)
        reply = client.requests(parsed.request, REQUESTS_KEPT, after, running.TIMEOUT_S)
        if isinstance(reply, Miss):
            if is_there:
                print("forebay: the pool went away; waiting for the next one.", file=sys.stderr)
            is_there = False
            continue
        if not is_there:
            is_there, after = True, 0  # another pool counts from 1
            continue
        _print_followed(parsed, reply)
        after = int(str(reply["newest"]))


def _print_followed(parsed: argparse.Namespace, found: Mapping[str, Any]) -> None:
    """Print the new requests at once, each on a line."""
    for request in found["requests"]:
        print(json.dumps(request) if parsed.json else _followed(request))
    sys.stdout.flush()


def _lines(found: Mapping[str, Any], name: str) -> Iterator[str]:
    requests = found["requests"]
    if not requests:
        yield from _nothing(found, name)
    elif name or len(requests) == 1:
        for number, request in enumerate(requests):
            yield from [""] if number else []
            yield from block(request)
    else:
        yield from plain(Table(list(_HEAD), list(map(_row, requests)), names=_NAMES))
        yield ""
        yield "forebay why REQUEST says more of one; waits in ms."


def _nothing(found: Mapping[str, Any], name: str) -> Iterator[str]:
    """What to print if there is no request: the engines' states, which may explain it."""
    if name and found["kept"]:
        yield escaped(f"none of the last {found['kept']} requests is called {name}")
        return
    yield "no request yet"
    if not found["engines"]:
        yield "no engine has joined this pool: start one (forebay serve), or see its log"
    for engine in found["engines"]:
        yield escaped(engine_line(engine))


def engine_line(engine: Mapping[str, Any]) -> str:
    """One engine: what it is, and whether it shares."""
    why = f": {engine['why']}" if engine["why"] else ""
    return f"{engine['engine']} with {engine['model'] or 'a model'}: {engine['sharing']}{why}"


def _row(request: Mapping[str, Any]) -> list[str]:
    name, shown = request["request"], _ID_LETTERS
    return [
        time.strftime("%H:%M:%S", time.localtime(request["time_s"])),
        name if len(name) <= shown else f"{name[: shown - 1]}…",
        str(request["prompt_tokens"]),
        str(request["engine_tokens"]),
        str(sum(request["loaded_tokens"].values())),
        str(request["computed_tokens"]),
        f"{request['wait_ms'] + request['load_ms']:.0f}",
        reason(request),
    ]


def reason(request: Mapping[str, Any]) -> str:
    """A decision in a few words, for the table and for `--follow`."""
    text = str(request["decision"]).replace("_", " ")
    if request["decision"] == "loaded":
        text += f" from {_by_tier(request['loaded_tokens'])}"
        if request["beyond"]:
            text += f"; the rest {request['beyond'].replace('_', ' ')}"
    elif request["detail"]:
        text += f": {request['detail']}"
    return text + (", after a preemption" if request["was_preempted"] else "")


def _followed(request: Mapping[str, Any]) -> str:
    when, name, prompt, engine, pool, computed, waited, why = _row(request)
    sums = f"{prompt} tokens = {engine} engine + {pool} pool + {computed} computed"
    return escaped(f"{when}  {name}  {sums}  {waited} ms  {why}")


def block(request: Mapping[str, Any]) -> list[str]:
    """All that is known of one request, as lines."""
    decision = decision_of(request["decision"])
    words = WORDS[decision] if decision is not None else None
    what = words.what if words is not None else str(request["what"])
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(request["time_s"]))
    rows = [
        ("engine", f"{request['engine']} {request['model']}".strip()),
        ("namespace", request["namespace"] or "not known"),
        ("prompt", f"{request['prompt_tokens']} tokens"),
        ("engine had", f"{request['engine_tokens']} tokens in its own prefix cache"),
        ("pool knew", _by_tier(request["found_tokens"], " tokens in ") or "nothing"),
        ("loaded", _by_tier(request["loaded_tokens"], " tokens from ") or "nothing"),
        ("computed", f"{request['computed_tokens']} tokens"),
        ("waited", _waits(request)),
        ("saved", _saved(request)),
    ]
    lines = [f"{request['request']}  {when}"]
    lines += [f"  {name:<10}  {text}" for name, text in rows]
    said = str(request["detail"])
    detail = f" {said[:1].upper()}{said[1:]}." if said else ""
    lines += _wrapped("why", f"{request['decision']}: {what}{detail}")
    lines += [line for note in _notes(request) for line in _wrapped("note", note)]
    advice = words.advice if words is not None else str(request["advice"])
    if advice:
        lines += _wrapped("to do", advice)
    return [escaped(line) for line in lines]


def _notes(request: Mapping[str, Any]) -> Iterator[str]:
    beyond = decision_of(request["beyond"] or "")
    if beyond is not None and beyond != request["decision"]:
        yield f"Of what follows the known prefix: {beyond}: {WORDS[beyond].what}"
    if not request["prefix_caching"]:
        yield (
            "The engine's own prefix caching is off: it keeps nothing between requests, and what"
            " repeats comes from the pool or is computed. Start it without"
            " --no-enable-prefix-caching."
        )
    if request["was_preempted"]:
        yield "The engine had preempted this request; these figures are of its return."
    if request["told_late"]:
        yield "The engine told of this later, when there was a pool again."


def _waits(request: Mapping[str, Any]) -> str:
    parts = [("lookup", "lookup_ms"), ("until it could begin", "wait_ms"), ("load", "load_ms")]
    return ", ".join(f"{request[field]:.1f} ms {name}" for name, field in parts)


def _saved(request: Mapping[str, Any]) -> str:
    if not request["loaded_tokens"]:
        return "nothing"
    saved = request["saved_gpu_ms_estimate"]
    if not saved:
        return "not known yet: the engine has not seen how fast its GPU computes"
    return f"about {saved:.0f} ms of computing (estimate)"


def _by_tier(tokens: Mapping[str, int], between: str = "") -> str:
    if between:
        return ", ".join(f"{count}{between}{tier}" for tier, count in tokens.items())
    return " and ".join(tokens)


def _wrapped(name: str, text: str) -> Sequence[str]:
    return textwrap.wrap(
        text,
        LINE_LETTERS,
        initial_indent=f"  {name:<10}  ",
        subsequent_indent=" " * 14,
    )
