"""`forebay hash-salt`: the hash of a salt, as `[[tenant]]` tables list it."""

import argparse
import getpass
import json
import sys
from typing import Final

from forebay.cli import flags
from forebay.cli.flags import Commands
from forebay.errors import SettingsError
from forebay.identity.tenants import salt_hash, salt_key
from forebay.pool.core.tenants.registry import read_secret

_SALT_LETTERS_MAX: Final = 1 << 16
_EPILOG = """\
examples:
  forebay hash-salt --tenant-key-file /etc/forebay/tenants.key
  printf %s "$SALT" | forebay hash-salt --config /etc/forebay/pool.toml

Reads one salt, as requests have it in cache_salt, from a terminal without showing it, or from
standard input without the newline at its end; never from the command line, which others can see.
Exit status: 0 printed, 2 not.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "hash-salt",
        description="Print the hash of a salt, to be listed under a tenant's salts.",
        epilog=_EPILOG,
    )
    flags.add_settings(parser, ["tenant_key_file"])
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    settings = flags.read_settings(parsed)
    if not settings.tenant_key_file:
        raise SettingsError("--tenant-key-file: name the file that the pool has.")
    secret = read_secret(settings.tenant_key_file)
    if sys.stdin.isatty():
        salt = getpass.getpass("cache_salt: ")
    else:
        salt = sys.stdin.read(_SALT_LETTERS_MAX + 2).removesuffix("\n")
    if not salt or len(salt) > _SALT_LETTERS_MAX:
        raise SettingsError(f"a salt has 1 to {_SALT_LETTERS_MAX} letters.")
    digits = salt_hash(salt, salt_key(secret)).hex()
    print(json.dumps({"salt_hash": digits}) if parsed.json else digits)
    return 0
