"""`forebay clear`: deletes what a pool holds, after saying what that is."""

import argparse
import json
import sys
from dataclasses import asdict, replace
from typing import Any, Final

from forebay.cli import flags
from forebay.cli.flags import Commands
from forebay.cli.pool import running
from forebay.cli.view.figures import Figures, figures
from forebay.cli.view.lines import UNICODE, plain
from forebay.cli.view.sections import namespaces
from forebay.cli.view.units import count, size
from forebay.errors import SettingsError, StartupError
from forebay.pool.client import Client
from forebay.pool.messages import NAMESPACE_RULE, is_namespace

_TIMEOUT_S: Final = 600.0  # to erase all of its drives
_LETTERS: Final = 10_000  # of a line: none is cut
_EPILOG = """\
examples:
  forebay clear --all --dry-run
  forebay clear --model Qwen/Qwen3-8B
  forebay clear --namespace 3fa94c1d
  forebay clear --all --yes

Says what it will delete, and asks first where standard input is a terminal, unless --yes is given.
forebay stats lists the namespaces by model. What is being loaded at this moment stays until it is
released. The bytes go too, from the files and from host memory: files read as zeros where they lay.
The drive's blocks may keep them until they are written again; --scrub writes zeros over them and
flushes, which takes as long as the drives need. Neither reaches what a drive keeps beneath its file
system, nor snapshots of it. Of a store that hosts share, what this host has sent there is deleted;
what other hosts have sent is theirs to clear, is counted in the answer, and is found until they do.
Exit status: 0 deleted, 1 the answer was no, 2 not.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "clear",
        description="Delete one namespace, a model's, or everything, from host memory and drives.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--namespace", metavar="HEX", help="the first 8 to 64 hex digits of a namespace"
    )
    parser.add_argument("--model", metavar="NAME", help="every namespace of this model")
    parser.add_argument("--all", action="store_true", help="everything")
    flags.add_deletion(parser)
    running.add_socket(parser)
    flags.add_json(parser, "print one JSON object instead of text, and do not ask")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    given = [parsed.namespace is not None, parsed.model is not None, parsed.all]
    if sum(given) != 1:
        raise SettingsError("say what to delete: one of --namespace HEX, --model NAME and --all.")
    if parsed.namespace is not None and not is_namespace(parsed.namespace):
        raise SettingsError(f"--namespace: {NAMESPACE_RULE}")
    if parsed.model == "":
        raise SettingsError("--model: a model's name is wanted, and this one is empty.")
    with running.client_of(parsed) as client:
        found = figures(running.answered(client, client.stats(running.TIMEOUT_S)))
        found = _chosen(found, parsed)
        if not parsed.json:
            print(_readable(found, is_sure=not parsed.dry_run))
        if parsed.dry_run:
            return _end(parsed, found, "nothing was deleted: this was a dry run.", is_done=False)
        if not running.is_meant(parsed, "Delete this?"):
            print("nothing was deleted.")
            return 1
        return _end(parsed, found, _clear(client, parsed, found), is_done=True)


def _chosen(found: Figures, parsed: argparse.Namespace) -> Figures:
    """The figures with only those namespaces that are to be deleted."""
    digits = (parsed.namespace or "").lower()
    chosen = tuple(
        each
        for each in found.namespaces
        if parsed.all
        or (parsed.model is not None and each.model == parsed.model)
        or (digits and _begin_alike(each.namespace, digits))
    )
    if parsed.model is not None and not chosen:
        raise SettingsError(
            f"no namespace is of model '{parsed.model[:80]}'; forebay stats lists them."
        )
    if parsed.model is not None and found.namespaces_more:
        print(
            f"forebay: {count(found.namespaces_more)} smaller namespaces are not listed, and stay;"
            " do it again if some are of this model.",
            file=sys.stderr,
        )
    more = found.namespaces_more if parsed.all else 0
    return replace(found, namespaces=chosen, namespaces_more=more)


def _begin_alike(shown: str, digits: str) -> bool:
    """Whether these may be the same namespace, as far as both are written out."""
    return shown.startswith(digits) or digits.startswith(shown)


def _readable(found: Figures, *, is_sure: bool) -> str:
    would = "To be deleted" if is_sure else "Would be deleted"
    if not found.namespaces:
        return f"{would}: nothing that the pool lists."
    rows = namespaces(found, "size", _LETTERS, UNICODE).rows
    chunks = sum(sum(each.chunks.values()) for each in found.namespaces)
    total = f"{size(sum(each.total_bytes for each in found.namespaces))} in {count(chunks)} chunks"
    return "\n".join([f"{would}: {total}", *("  " + plain(row) for row in rows)])


def _clear(client: Client, parsed: argparse.Namespace, found: Figures) -> str:
    """Clear, and return what the pool reports."""
    wanted = [parsed.namespace]  # None: everything
    if parsed.model is not None:
        wanted = [each.namespace for each in found.namespaces]
    sentences = []
    for namespace in wanted:
        cleared = client.clear(namespace, _TIMEOUT_S, scrub=parsed.scrub)
        done = running.answered(client, cleared, _TIMEOUT_S)
        if not done.ok:
            raise StartupError(done.sentence)
        sentences.append(done.sentence)
    return "\n".join(sentences)


def _end(parsed: argparse.Namespace, found: Figures, said: str, *, is_done: bool) -> int:
    if parsed.json:
        listed: list[dict[str, Any]] = [asdict(each) for each in found.namespaces]
        print(json.dumps({"deleted": is_done, "namespaces": listed, "said": said}, indent=2))
    else:
        print(said)
    return 0
