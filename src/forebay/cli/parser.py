"""The parser of the command line: a command's module is imported when its words are parsed.

Until then a command is a name and a line of help, so that `forebay stats` does not load what only a
benchmark needs. Errors are one sentence, and suggest what was probably meant.
"""

import argparse
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, NoReturn, Protocol

from forebay.errors import SettingsError

_SHOWN_LETTERS: Final = 80  # of a word that is not known


class Commands(Protocol):
    """The object to which a command adds its parser; argparse's own type for it is private."""

    def add_parser(self, name: str, **options: str) -> "Parser":
        """The parser of a new command, with argparse's own options."""


class Command(NamedTuple):
    """A command as its parent lists it; `add(commands)` of its module defines the rest."""

    name: str
    help: str
    module: str


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence and whose flags cannot be abbreviated."""

    def __init__(self, **options: object) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)  # type: ignore[arg-type]
        self.passes_on = False  # whether unknown words go into `passed_on`, in their order
        self.module = ""  # that defines this command's flags; empty once it is loaded

    def add_commands(self, title: str, metavar: str, commands: Iterable[Command]) -> None:
        """Add commands whose modules are imported when they are needed."""
        action = self.add_subparsers(title=title, metavar=metavar, required=True)
        for command in commands:
            action.add_parser(command.name, help=command.help).module = command.module

    @property
    def commands(self) -> Mapping[str, "Parser"]:
        """The commands of this one, by name."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - no public name
                return dict(action.choices)
        return {}

    def load(self) -> None:
        """Import this command's module once, which adds its flags and description."""
        module, self.module = self.module, ""
        if not module:
            return
        assert module.startswith("forebay.cli."), module
        imported = importlib.import_module(module)
        imported.add(_Place(self))

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's; but if a command passes words on, those are set aside first."""
        self.load()
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
        """Report the first unknown flag, before argparse reports missing arguments.

        Words after a command's name are left to that command; those after -- are not checked.
        """
        commands = self.commands
        for word in words:
            if word == "--":
                return
            if commands and not word.startswith("-"):
                if word not in commands:
                    self._refuse(word, "command", commands)
                return
            flag, _, value = word.partition("=")
            if not word.startswith("--") or " " in word:
                continue
            if flag not in self._option_string_actions:
                self._refuse(flag, "flag", self._option_string_actions)
            if value == "--":  # argparse would drop it
                self.error(f"argument {flag}: '--' is no value")

    def _refuse(self, word: str, kind: str, known: Iterable[str]) -> NoReturn:
        meant = nearest(word, known)
        hint = f" (did you mean {meant}?)" if meant else ""
        shown = word[:_SHOWN_LETTERS]
        self.error(
            f"{shown if kind == 'flag' else repr(shown)} is not a {kind} of {self.prog}{hint}"
        )

    def _sorted_out(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Split words into ours (our flags, and a first word without a dash) and the others."""
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
        """Raise argparse's error as a SettingsError."""
        raise SettingsError(f"{message.rstrip('.')}; see {self.prog} --help.")


class _Place:
    """Given to a command's module as `Commands`: its parser exists already, and is filled in."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def add_parser(self, name: str, **options: str) -> Parser:
        """The command's parser; its parent knows its name and its line of help."""
        assert self._parser.prog.endswith(f" {name}"), name
        options.pop("help", None)
        for option, value in options.items():
            assert hasattr(self._parser, option), option
            setattr(self._parser, option, value)
        return self._parser


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant; empty if none is similar."""
    import difflib  # noqa: PLC0415 - only for what is wrong

    from forebay.settings import NEAR  # noqa: PLC0415 - likewise

    near = difflib.get_close_matches(word[:_SHOWN_LETTERS], known, n=1, cutoff=NEAR)
    return near[0] if near else ""
