"""`forebay clear`: delete what a pool holds."""

import argparse
from typing import Final

from forebay.cli.flags import Commands
from forebay.cli.pool import running
from forebay.errors import SettingsError, StartupError
from forebay.pool.messages import NAMESPACE_RULE, is_namespace

_TIMEOUT_S: Final = 600.0  # what a pool may take to erase all of its drives
_EPILOG = """\
examples:
  forebay clear --namespace 3fa94c1d
  forebay clear --all

What is being loaded at this moment stays until it is released. The bytes go too, from the files and
from host memory, which takes as long as the drives need. Exit status: 0 deleted, 2 not.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "clear",
        description="Delete one namespace, or everything, from host memory and drives.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--namespace", metavar="HEX", help="the first 8 to 64 hex digits of a namespace"
    )
    parser.add_argument("--all", action="store_true", help="everything")
    running.add_socket(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    if (parsed.namespace is None) != parsed.all:
        raise SettingsError("say what to delete: either --namespace HEX or --all.")
    if parsed.namespace is not None and not is_namespace(parsed.namespace):
        raise SettingsError(f"--namespace: {NAMESPACE_RULE}")
    with running.client_of(parsed) as client:
        done = running.answered(client.clear(parsed.namespace, _TIMEOUT_S), _TIMEOUT_S)
    if not done.ok:
        raise StartupError(done.sentence)
    print(done.sentence)
    return 0
