"""`forebay forget`: deletes everything of a tenant, for good, after saying what that is."""

import argparse
import json
from typing import Final

from forebay.cli import flags
from forebay.cli.flags import Commands
from forebay.cli.pool import running
from forebay.cli.view.figures import TenantFigures, figures
from forebay.cli.view.units import size
from forebay.errors import SettingsError, StartupError
from forebay.tenants import NAME_RULE, is_tenant_name

_TIMEOUT_S: Final = 3600.0  # to write over all of its drives
_EPILOG = """\
examples:
  forebay forget search --dry-run
  forebay forget search
  forebay forget search --yes --scrub

Says what it will delete, and asks first where standard input is a terminal, unless --yes is given.
When it says that the tenant is forgotten, nothing of it is in host memory, nor in any file of the
pool, and nothing can bring it back: what engines were copying was waited for, and a pool that is
killed meanwhile finishes when it starts again. The tenant itself stays, and begins empty.

Without --scrub, blocks of a drive may keep bytes until the file system uses them again; with it,
they are written over with zeros and flushed first. Beyond reach either way: what a drive keeps
beneath its file system, snapshots of the file system, and what other hosts have copied into a
shared store. Exit status: 0 forgotten, 1 the answer was no, 2 not, or not all of it.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "forget",
        description="Delete all that is a tenant's, from host memory, drives and stores.",
        epilog=_EPILOG,
    )
    parser.add_argument("tenant", metavar="TENANT", help="its name, as forebay stats lists it")
    flags.add_deletion(parser)
    running.add_socket(parser)
    flags.add_json(parser, "print one JSON object instead of text, and do not ask")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    if not is_tenant_name(parsed.tenant):
        raise SettingsError(NAME_RULE)
    with running.client_of(parsed) as client:
        snapshot = running.answered(client, client.stats(running.TIMEOUT_S))
        found = next((e for e in figures(snapshot).tenants if e.tenant == parsed.tenant), None)
        held = TenantFigures(parsed.tenant, {}) if found is None else found
        if not parsed.json:
            print(_readable(held, is_sure=not parsed.dry_run))
        if parsed.dry_run:
            return _end(parsed, held, "nothing was forgotten: this was a dry run.", is_done=False)
        if not running.is_meant(parsed, "Forget this?"):
            print("nothing was forgotten.")
            return 1
        outcome = client.forget(parsed.tenant, _TIMEOUT_S, scrub=parsed.scrub)
        done = running.answered(client, outcome, _TIMEOUT_S)
        if not done.ok:
            raise StartupError(done.sentence)
        return _end(parsed, held, done.sentence, is_done=True)


def _readable(held: TenantFigures, *, is_sure: bool) -> str:
    would = "To be forgotten" if is_sure else "Would be forgotten"
    sizes = ", ".join(f"{size(taken)} of {tier}" for tier, taken in held.used_bytes.items())
    return f"{would}: tenant {held.tenant}, which has {sizes or 'nothing that the pool lists'}."


def _end(parsed: argparse.Namespace, held: TenantFigures, said: str, *, is_done: bool) -> int:
    if parsed.json:
        told = {"forgotten": is_done, "tenant": held.tenant, "used_bytes": dict(held.used_bytes)}
        print(json.dumps(told | {"said": said}, indent=2))
    else:
        print(said)
    return 0
