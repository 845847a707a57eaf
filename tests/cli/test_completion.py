"""Completion, in the shells themselves: bash, zsh and fish offer what the parser knows."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.terminal import Terminal

from forebay.cli.completion import Place, places
from forebay.cli.main import build_parser, main


@pytest.fixture
def script(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Path:
    """The script of the shell that the test names."""
    assert main(["completion", request.param]) == 0
    path = tmp_path / f"forebay.{request.param}"
    path.write_text(capsys.readouterr().out)
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed: apt-get install {request.param}")
    return path


def offered_by_bash(script: Path, line: str) -> list[str]:
    words = [*shlex.split(line), ""] if line.endswith(" ") else shlex.split(line)
    program = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=({shlex.join(words)});"
        f" COMP_CWORD={len(words) - 1}; _forebay; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    command = ["bash", "--norc", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return ended.stdout.split()


def offered_by_fish(script: Path, line: str) -> list[str]:
    program = f"source {shlex.quote(str(script))}; complete -C {shlex.quote(line)}"
    command = ["fish", "--no-config", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return [row.partition("\t")[0] for row in ended.stdout.splitlines()]


def every_place() -> list[Place]:
    return list(places(build_parser()))


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_offers_commands_flags_and_values(script: Path, tmp_path: Path) -> None:
    for place in every_place():
        line = " ".join(("forebay", *place.name))
        if place.commands:
            assert offered_by_bash(script, f"{line} ") == [word.text for word in place.commands]
        assert offered_by_bash(script, f"{line} -") == [flag.word.text for flag in place.flags]
    assert offered_by_bash(script, "forebay cl") == ["clear"]
    assert offered_by_bash(script, "forebay completion z") == ["zsh"]
    assert "lru" in offered_by_bash(script, "forebay sim --policy ")
    assert offered_by_bash(script, f"forebay stats --socket {tmp_path}/for") == [str(script)]


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_offers_commands_flags_and_values(script: Path) -> None:
    found = {" ".join(("forebay", *place.name)): place for place in every_place()}
    for line in ("forebay", "forebay bench", "forebay plan"):
        names = [word.text for word in found[line].commands]
        assert sorted(offered_by_fish(script, f"{line} ")) == sorted(names)
    for line in ("forebay", "forebay clear", "forebay bench ab", "forebay plan kv"):
        flags = [each.word.text for each in found[line].flags if each.word.text.startswith("--")]
        assert sorted(offered_by_fish(script, f"{line} --")) == sorted(flags)
    assert offered_by_fish(script, "forebay completion z") == ["zsh"]
    assert "lru" in offered_by_fish(script, "forebay sim --policy ")


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_completes_in_a_terminal(script: Path, tmp_path: Path) -> None:
    with Terminal("zsh", "-f", place=tmp_path, lines=24, columns=100) as terminal:
        terminal.type("PS1='ready> '; autoload -Uz compinit && compinit -u -D")
        terminal.type(f"source {shlex.quote(str(script))}")
        terminal.type("clear; echo loaded")
        terminal.wait_for("\nready>", "loaded")
        for typed, completed in (
            ("forebay cle", "forebay clear"),
            ("forebay plan brea", "forebay plan breakeven"),
            ("forebay stats --jso", "forebay stats --json"),
            ("forebay completion fi", "forebay completion fish"),
        ):
            terminal.press("C-u")
            terminal.press("-l", typed)
            terminal.press("Tab")
            terminal.wait_for(completed)
    for place in every_place():
        for flag in place.flags:
            assert f"'*{flag.word.text}[" in script.read_text()
