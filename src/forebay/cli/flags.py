"""Flags that commands share: settings by name, `--config`, `--json`, the SLA."""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from forebay import settings
from forebay.cli.parser import Commands, Parser
from forebay.errors import SettingsError
from forebay.plan.measured import STATISTICS, Sla
from forebay.quantity import parse_count, parse_rate
from forebay.settings import Settings

__all__ = [
    "UTF8",
    "Commands",
    "Parser",
    "Typed",
    "add_json",
    "add_settings",
    "add_sla",
    "read_settings",
    "read_sla",
    "typed",
]
_Value = TypeVar("_Value")
Typed = Callable[[str], _Value]


def typed(parse: Callable[[str], _Value], what: str) -> "Typed[_Value]":
    """A type for argparse: if `parse` refuses a value, the error is a sentence with the flag."""

    def checked(text: str) -> _Value:
        try:
            return parse(text)
        except SettingsError as error:
            said = str(error).removesuffix(".")
        except ValueError:
            said = f"'{text[:40]}' is not {what}"
        raise argparse.ArgumentTypeError(said)

    return checked


def _utf8(text: str) -> str:
    text.encode()  # a word that is not UTF-8 has parts that cannot be encoded again
    return text


# For names that are sent to a server or written into a result; paths may have any bytes.
UTF8: "Final[Typed[str]]" = typed(_utf8, "UTF-8 text")


# A whole number as people write it: 32768, 32k (32,000), 32Ki (32,768).
COUNT: "Final[Typed[int]]" = typed(parse_count, "a whole number")
RATE: "Final[Typed[float]]" = typed(parse_rate, "a number")  # 6700.5, 38k


def add_deletion(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a command that deletes: `--scrub`, `--yes` and `--dry-run`."""
    parser.add_argument("--scrub", action="store_true", help="write zeros over it, and flush")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="say what would go, delete nothing")


def add_json(
    parser: argparse.ArgumentParser, what: str = "print one JSON object instead of text"
) -> None:
    """Add `--json`: the same facts for programs."""
    parser.add_argument("--json", action="store_true", help=what)


def add_sla(parser: argparse.ArgumentParser) -> None:
    """Add `--tpot-ms`, `--ttft-ms`, `--e2e-ms`, and `--sla-at`, the statistic that they bound."""
    parser.add_argument("--tpot-ms", metavar="N", type=float, help="SLA: bound of TPOT (50)")
    parser.add_argument("--ttft-ms", metavar="N", type=float, help="SLA: bound of TTFT (none)")
    parser.add_argument(
        "--e2e-ms", metavar="N", type=float, help="SLA: bound of the time to the last token (none)"
    )
    parser.add_argument(
        "--sla-at", choices=STATISTICS, help="SLA: of a step's requests (default: mean)"
    )


def read_sla(parsed: argparse.Namespace, found: Sla | None = None) -> Sla:
    """The SLA from the flags, with `found` for what they leave out; SettingsError if invalid."""
    said = {
        "tpot_ms": parsed.tpot_ms,
        "ttft_ms": parsed.ttft_ms,
        "e2e_ms": parsed.e2e_ms,
        "at": parsed.sla_at,
    }
    given = {name: value for name, value in said.items() if value is not None}
    return replace(found or Sla(), **given)


def add_settings(
    parser: argparse.ArgumentParser, names: Sequence[str], *, has_file: bool = True
) -> None:
    """Add flags for these settings, and `--config` unless that means something else here."""
    docs = {each.name: each for each in settings.documentation()}
    for name in names:
        doc = f"{docs[name].doc} (default: {docs[name].default})".replace("%", "%%")
        default = getattr(Settings(), name)
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=doc)
        elif isinstance(default, tuple):
            form = {"disk": "DIR:SIZE", "remote": "URL"}.get(name, "ID")
            parser.add_argument(flag, action="append", metavar=form, help=doc)
        else:
            parser.add_argument(flag, metavar=_metavar(name, docs[name].default, default), help=doc)
    parser.set_defaults(setting_names=tuple(names))
    parser.set_defaults(config=None)
    if has_file:
        parser.add_argument("--config", metavar="FILE.toml", help="settings; flags override it")


def read_settings(parsed: argparse.Namespace) -> Settings:
    """The settings from flags, variables and the file; the first of these wins."""
    flags = {name: getattr(parsed, name) for name in parsed.setting_names}
    sources = [settings.from_flags(flags), settings.from_environment(os.environ)]
    if parsed.config is not None:
        sources.append(settings.from_file(parsed.config))
    return settings.build(sources)


def _metavar(name: str, shown: str, default: object) -> str:
    if shown.endswith("iB") or name == "disk_writes_a_day":
        return "SIZE"
    if name in {"socket", "trace"}:
        return {"socket": "PATH", "trace": "FILE[:SIZE]"}[name]
    return {int: "NUMBER", float: "NUMBER"}.get(type(default), "TEXT")
