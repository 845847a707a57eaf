"""`forebay health`: whether a record goes through every tier of the running pool, for probes.

Asks /healthz at the pool's HTTP port, which the pool tells over its socket unless it is given, and
checks that the port is this pool's: another one may have it.
"""

import argparse
import http.client
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from forebay.cli import flags
from forebay.cli.flags import Commands
from forebay.cli.pool import running
from forebay.errors import StartupError
from forebay.files import read_regular
from forebay.pool.address import find_address
from forebay.report.escaping import escaped
from forebay.settings import Settings, parse_address

_ANSWER_S: Final = 10.0  # twice the bound of the pool's own check
_ANSWER_BYTES_MAX: Final = 16 << 20
_TOKEN_BYTES_MAX: Final = 4096
_SETTINGS: Final = ("socket", "allow_uid", "metrics_address", "metrics_token_file")
_EPILOG = """\
examples:
  forebay health
  forebay health --json
  forebay health --metrics-address 127.0.0.1:7412 --socket /run/forebay/pool.sock

A record is written to every tier, read back and compared, and the pool's socket is joined, all
within 5 seconds; a report holds for 5 seconds, however often it is asked for. The same is answered
over HTTP at /healthz; where that is, the pool says, unless --metrics-address does. Exit
status: 0 well, 1 not well, 2 the pool does not answer.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "health",
        description="Say whether records go through the running pool, tier by tier.",
        epilog=_EPILOG,
    )
    flags.add_settings(parser, _SETTINGS)
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    settings = _with_address(parsed, flags.read_settings(parsed))
    stats = _stats(settings)
    report = _asked(settings, "/healthz")
    if parsed.json:
        print(json.dumps(report, indent=2))
    else:
        for check in report["checks"]:
            state = "well" if check["ok"] else f"not well: {escaped(str(check['why']))}"
            print(f"{escaped(_place(check, stats))}: {state}")
    return 0 if report["ok"] else 1


def _with_address(parsed: argparse.Namespace, settings: Settings) -> Settings:
    """The settings with the HTTP address that the pool tells, unless one was given."""
    is_default = settings.metrics_address == Settings().metrics_address
    if parsed.metrics_address is not None or not is_default:
        return settings
    with running.client_of(parsed) as client:
        stats = running.answered(client, client.stats(running.TIMEOUT_S))
    address = stats.get("http", settings.metrics_address)
    if address is None:
        raise StartupError(
            f"the pool at {stats['socket']} does not answer HTTP, and so not for its health; start"
            " it with a --metrics-address that is free."
        )
    return replace(settings, metrics_address=str(address))


def _place(check: Mapping[str, Any], stats: Mapping[str, Any]) -> str:
    """What was checked: a tier and its directory, or the volume's number if it has no path."""
    tier, volume = str(check["tier"]), check["volume"]
    volumes = [each["volumes"] for each in stats["tiers"] if each["name"] == tier]
    paths = dict(enumerate(each["path"] for each in volumes[0])) if volumes else {}
    return f"{tier} {paths.get(volume, volume)}"


def _stats(settings: Settings) -> dict[str, Any]:
    """The pool's statistics; StartupError if the port belongs to another pool."""
    stats = _asked(settings, "/stats.json")
    wanted, found = find_address(settings.socket).path, stats["socket"]
    if found != wanted:
        raise StartupError(
            f"the pool of {found} answers at {settings.metrics_address}, not that of {wanted};"
            " give each its own --metrics-address."
        )
    return stats


def _asked(settings: Settings, path: str) -> dict[str, Any]:
    """The pool's answer for a path, parsed as JSON; StartupError if there is none."""
    link = http.client.HTTPConnection(*_address(settings), timeout=_ANSWER_S)
    where = f"the pool's HTTP port at {settings.metrics_address}"
    try:
        link.request("GET", path, headers=_headers(settings))
        answer = link.getresponse()
        body = answer.read(_ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise StartupError(f"{where} does not answer ({why}); see --metrics-address.") from None
    finally:
        link.close()
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StartupError(f"{where} answers {answer.status} {answer.reason}, not with a report.")
    return found


def _address(settings: Settings) -> tuple[str, int]:
    found = parse_address(settings.metrics_address)
    if found is None:
        raise StartupError("metrics_address is none: the pool's health is answered over HTTP.")
    host, port = found
    if ipaddress.ip_address(host).is_unspecified:  # listened at everywhere, so here too
        host = "127.0.0.1" if ipaddress.ip_address(host).version == 4 else "::1"
    return host, port


def _headers(settings: Settings) -> dict[str, str]:
    if not settings.metrics_token_file:
        return {}
    token = read_regular(settings.metrics_token_file, _TOKEN_BYTES_MAX).strip()
    return {"Authorization": f"Bearer {token.decode(errors='replace')}"}
