"""`forebay completion`: a script that completes this command line in bash, zsh or fish.

It is generated from the parser, so it has all commands, flags and choices, with their lines of help
if the shell shows them. While a line is completed, no Python runs and no pool is asked.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from forebay.cli.parser import Commands, Parser

_EPILOG = """\
examples:
  forebay completion bash > ~/.local/share/bash-completion/completions/forebay
  forebay completion zsh > ~/.zfunc/_forebay
  forebay completion fish > ~/.config/fish/completions/forebay.fish

bash reads that directory by itself where the package bash-completion is installed; else add to
~/.bashrc: source <(forebay completion bash). zsh reads it where ~/.zshrc has, before compinit:
fpath+=~/.zfunc. Write the file again after an upgrade. Exit status: 0 printed, 2 no such shell.
"""
_DIRECTORY_METAVARS: Final = frozenset({"DIR", "DIR:SIZE"})
_FILE_METAVARS: Final = frozenset(
    {"FILE", "FILE.toml", "FILE.html", "FILE[:SIZE]", "PATH", "SOCKET", "MODEL", "RESULT"}
)
_SUMMARY_LETTERS_MAX: Final = 100  # of a line of help


class Word(NamedTuple):
    """A flag, a choice or a command, with its line of help."""

    text: str
    summary: str


class Flag(NamedTuple):
    """A flag and the values that it takes."""

    word: Word
    takes_value: bool
    values: tuple[str, ...]  # to choose from; empty: any
    paths: str  # "file", "directory", or empty if the value is no path


class Place(NamedTuple):
    """A command, and what may follow it."""

    name: tuple[str, ...]  # its words without `forebay`
    commands: tuple[Word, ...]
    flags: tuple[Flag, ...]
    values: tuple[str, ...]  # choices for its argument
    paths: str  # the kind of path that its argument is, as in Flag


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "completion",
        description="Print a script that completes forebay's commands and flags in a shell.",
        epilog=_EPILOG,
    )
    parser.add_argument("shell", choices=tuple(_SCRIPTS), metavar="SHELL", help=", ".join(_SCRIPTS))
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    from forebay.cli.main import build_parser  # noqa: PLC0415 - which lists this module

    print(_SCRIPTS[parsed.shell](list(places(build_parser()))), end="")
    return 0


def places(parser: Parser, name: tuple[str, ...] = ()) -> Iterator[Place]:
    """A command and all commands below it."""
    parser.load()
    summaries = {each.dest: each.help or "" for each in _listed(parser)}
    names = tuple(parser.commands)
    argument = next((each for each in _arguments(parser) if not names), None)
    yield Place(
        name,
        tuple(Word(each, _summary(summaries.get(each, ""))) for each in names),
        tuple(flag for action in parser._actions for flag in _flags(action)),  # noqa: SLF001
        tuple(map(str, argument.choices or ())) if argument else (),
        _paths(argument) if argument else "",
    )
    for each, beneath in parser.commands.items():
        yield from places(beneath, (*name, each))


def _listed(parser: Parser) -> list[argparse.Action]:
    """Commands as argparse's help lists them."""
    return [
        listed
        for action in parser._actions  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
        for listed in action._get_subactions()  # noqa: SLF001
    ]


def _arguments(parser: Parser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]  # noqa: SLF001


def _flags(action: argparse.Action) -> Iterator[Flag]:
    if action.help == argparse.SUPPRESS:
        return
    for text in action.option_strings:
        takes_value = action.nargs != 0
        values = tuple(map(str, action.choices or ())) if takes_value else ()
        summary = _summary((action.help or "").replace("%%", "%"))
        yield Flag(Word(text, summary), takes_value, values, _paths(action))


def _paths(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if metavar in _DIRECTORY_METAVARS:
        return "directory"
    return "file" if metavar in _FILE_METAVARS or metavar.endswith(".json") else ""


def _summary(text: str) -> str:
    """The first sentence of a help text, without characters that have a meaning in a script."""
    text = text.replace("%(default)s", "default")
    words = " ".join(text.split()).replace("'", "\N{RIGHT SINGLE QUOTATION MARK}")
    plain = re.sub(r"[^\w .,;:/=+()\N{RIGHT SINGLE QUOTATION MARK}-]", "", words)
    return plain.partition(". ")[0].rstrip(".")[:_SUMMARY_LETTERS_MAX]


def _bash(found: list[Place]) -> str:
    """One function that follows the command's words, and then offers what may come next."""
    lines = [
        "# Completion of forebay in bash, written by: forebay completion bash",
        """_forebay_offer() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$word"); }""",
        "_forebay_offer_paths() {",
        "  compopt -o filenames 2>/dev/null",
        """  mapfile -t COMPREPLY < <(compgen "$1" -- "$word")""",
        "}",
        "_forebay() {",
        '  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} place="" at',
        "  for ((at = 1; at < COMP_CWORD; at++)); do",
        '    case "$place ${COMP_WORDS[at]}" in',
    ]
    steps = [" ".join(("", *place.name)) for place in found if place.name]
    lines += [f'      "{step}") place="{step}" ;;' for step in steps]
    lines += ["    esac", "  done", "  COMPREPLY=()", '  case "$place $before" in']
    for place in found:
        at = " ".join(("", *place.name))
        for flag in place.flags:
            if flag.takes_value:
                offer = _bash_offer(flag.values, flag.paths)
                lines.append(f'    "{at} {flag.word.text}") {offer}; return ;;')
    lines += ["  esac", '  case "$place" in']
    for place in found:
        words = [*(word.text for word in place.commands), *place.values]
        flags = " ".join(flag.word.text for flag in place.flags)
        offer = _bash_offer(tuple(words), place.paths)
        lines.append(f'    "{" ".join(("", *place.name))}")')
        lines.append(f"      if [[ $word == -* ]]; then {_bash_offer((flags,), '')}")
        lines.append(f"      else {offer}; fi ;;")
    return "\n".join([*lines, "  esac", "}", "complete -F _forebay forebay", ""])


def _bash_offer(words: tuple[str, ...], paths: str) -> str:
    if paths:
        option = "-d" if paths == "directory" else "-f"
        return f"_forebay_offer_paths {option}"
    return f'_forebay_offer "{" ".join(words)}"' if words else ":"


def _zsh(found: list[Place]) -> str:
    """One function per command, using zsh's own `_arguments` and `_describe`."""
    lines = ["#compdef forebay", "# Written by: forebay completion zsh"]
    for place in found:
        lines += ["", f"{_function(place.name)}() {{", "  local state line"]
        specs = [_zsh_flag(flag) for flag in place.flags]
        if place.commands:
            specs += ["'1: :->command'", "'*:: :->rest'"]
        elif place.values:
            specs.append(f"'1:value:({' '.join(place.values)})'")
        elif place.paths:
            specs.append(f"'*:path:_files{' -/' * (place.paths == 'directory')}'")
        lines.append("  _arguments -C \\")
        lines += [f"    {spec} \\" for spec in specs]
        lines[-1] = lines[-1].removesuffix(" \\")
        if place.commands:
            lines += _zsh_commands(place)
        lines.append("}")
    # compinit reads the file as the body of _forebay; if sourced, it must call compdef itself.
    lines += ["", 'if [ "$funcstack[1]" = _forebay ]; then _forebay "$@"', "else compdef _forebay"]
    lines[-1] += " forebay; fi"
    return "\n".join([*lines, ""])


def _zsh_commands(place: Place) -> list[str]:
    listed = [f"      '{word.text}:{_colons(word.summary)}'" for word in place.commands]
    calls = [
        f"      {word.text}) {_function((*place.name, word.text))} ;;" for word in place.commands
    ]
    return [
        "  case $state in",
        "  command)",
        "    local -a found=(",
        *listed,
        "    )",
        "    _describe command found ;;",
        "  rest)",
        "    case $line[1] in",
        *calls,
        "    esac ;;",
        "  esac",
    ]


def _zsh_flag(flag: Flag) -> str:
    summary = _colons(flag.word.summary).replace("[", "").replace("]", "")
    spec = f"*{flag.word.text}[{summary}]"
    if flag.values:
        spec += f":value:({' '.join(flag.values)})"
    elif flag.paths:
        spec += f":path:_files{' -/' * (flag.paths == 'directory')}"
    elif flag.takes_value:
        spec += ":value: "
    return f"'{spec}'"


def _colons(text: str) -> str:
    return text.replace(":", "\\:")


def _function(name: tuple[str, ...]) -> str:
    return "_".join(("_forebay", *name))


def _fish(found: list[Place]) -> str:
    """One line per suggestion, each with the condition under which it is made."""
    lines = [
        "# Completion of forebay in fish, written by: forebay completion fish",
        "function __forebay_at",
        "  set -l place",
        "  set -l words (commandline -opc)",
        "  for word in $words[2..-1]",
        '    switch "$place $word"',
    ]
    lines += [
        f'      case "{" ".join(("", *place.name))}"\n        set place "$place $word"'
        for place in found
        if place.name
    ]
    lines += ["    end", "  end", '  test "$place" = "$argv[1]"', "end", "complete -c forebay -f"]
    for place in found:
        name = " ".join(("", *place.name))
        begin = f"complete -c forebay -n '__forebay_at \"{name}\"'"
        lines += [f"{begin} -a {word.text} -d '{word.summary}'" for word in place.commands]
        lines += [f"{begin} -a {value}" for value in place.values]
        if place.paths:
            lines.append(f"{begin} -F")
        lines += [f"{begin} {_fish_flag(flag)}" for flag in place.flags]
    return "\n".join([*lines, ""])


def _fish_flag(flag: Flag) -> str:
    text = flag.word.text
    name = f"-l {text[2:]}" if text.startswith("--") else f"-s {text[1:]}"
    value = ""
    if flag.takes_value:
        value = f" -x -a '{' '.join(flag.values)}'" if flag.values else " -x"
        value = " -r -F" if flag.paths else value
    return f"{name}{value} -d '{flag.word.summary}'"


_SCRIPTS: Final[dict[str, Callable[[list[Place]], str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
