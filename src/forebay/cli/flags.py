"""Flags that commands share: settings by name, `--config`, `--json`, the SLA."""

import argparse
import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NoReturn, Protocol, TypeVar

from forebay import settings
from forebay.errors import SettingsError
from forebay.plan.measured import Sla
from forebay.settings import Settings

_Value = TypeVar("_Value")
Typed = Callable[[str], _Value]


class Commands(Protocol):
    """Where a command's parser is added; argparse keeps its own type of it private."""

    def add_parser(self, name: str, **options: str) -> "Parser":
        """The parser of a new command, with argparse's own options."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one sentence and whose flags have one spelling."""

    def __init__(self, **options: object) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)  # type: ignore[arg-type]
        self.passes_on = False  # words that we do not know go into `passed_on`, in their order

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse does, but for a command that passes words on: those are set aside first."""
        if args is None:
            return super().parse_known_args(args, namespace)
        if not self.passes_on:
            self._refuse_unknown(args)
            return super().parse_known_args(args, namespace)
        ours, passed_on = self._sorted_out(list(args))
        self._refuse_unknown(ours)
        parsed, unknown = super().parse_known_args(ours, namespace)
        parsed.passed_on = passed_on
        return parsed, unknown

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        """An error about the first word that is no flag of ours, before one about what is missing.

        Words behind a command's name are that command's to judge, those behind -- nobody's.
        """
        for word in words:
            if word == "--" or (self._subparsers is not None and not word.startswith("-")):
                return
            flag, _, value = word.partition("=")
            if not word.startswith("--") or " " in word:
                continue
            if flag not in self._option_string_actions:
                near = difflib.get_close_matches(
                    flag[:80], self._option_string_actions, n=1, cutoff=settings.NEAR
                )
                hint = f" (did you mean {near[0]}?)" if near else ""
                self.error(f"{flag[:80]} is not a flag of {self.prog}{hint}")
            if value == "--":  # argparse would drop it
                self.error(f"argument {flag}: '--' is no value")

    def _sorted_out(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Our words and the others: a first word without a dash is ours, and so are our flags."""
        ours: list[str] = []
        others: list[str] = []
        if words and not words[0].startswith("-"):
            ours.append(words.pop(0))
        while words:
            word = words.pop(0)
            if word == "--":
                return ours, others + words
            flag, equals, _ = word.partition("=")
            action = self._option_string_actions.get(flag)
            if action is None:
                others.append(word)
                continue
            ours.append(word)
            if action.nargs is None and not equals and words:
                ours.append(words.pop(0))
        return ours, others

    def error(self, message: str) -> NoReturn:
        """What argparse found wrong, as the start-up error that it is."""
        raise SettingsError(f"{message.rstrip('.')}; see {self.prog} --help.")


def typed(parse: Callable[[str], _Value], what: str) -> "Typed[_Value]":
    """A type of argparse's: what `parse` refuses is a sentence that names the flag."""

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


# A name that is sent to a server or written into a result; a path may hold any bytes.
UTF8: "Final[Typed[str]]" = typed(_utf8, "UTF-8 text")


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`: the same facts for programs."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def add_sla(parser: argparse.ArgumentParser) -> None:
    """`--tpot-ms` and `--ttft-ms`."""
    parser.add_argument(
        "--tpot-ms", metavar="N", type=float, help="SLA: bound of the mean TPOT (default: 50)"
    )
    parser.add_argument(
        "--ttft-ms", metavar="N", type=float, help="SLA: bound of the mean TTFT (default: none)"
    )


def read_sla(parsed: argparse.Namespace, found: Sla | None = None) -> Sla:
    """The SLA as the flags say it, else as it was; a SettingsError if it cannot be meant."""
    said = {"tpot_ms": parsed.tpot_ms, "ttft_ms": parsed.ttft_ms}
    given = {name: value for name, value in said.items() if value is not None}
    return replace(found or Sla(), **given)


def add_settings(
    parser: argparse.ArgumentParser, names: Sequence[str], *, has_file: bool = True
) -> None:
    """Flags for these settings, and `--config` unless that means something else here."""
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
    """Settings as flags, variables and the file say them, in this order."""
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
