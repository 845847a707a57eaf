"""The worked examples of docs/planning.md are run: what they print is what the page shows.

`python tests/plan/test_plan_docs.py` writes the page's outputs anew after a deliberate change.
"""

import contextlib
import io
import os
import re
import shlex
from pathlib import Path
from unittest import mock

from forebay.cli.main import main
from forebay.plan.breakeven import SOURCES
from forebay.plan.model.known import MODELS
from forebay.plan.ssd import DRIVES

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"
EXAMPLE = re.compile(r"```console\n\$ forebay (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)


def printed(command: str) -> str:
    out = io.StringIO()
    with mock.patch.dict(os.environ, {"COLUMNS": "100"}), contextlib.redirect_stdout(out):
        assert main(shlex.split(command)) == 0
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines() if line.strip())


def rewritten(page: str) -> str:
    def run(example: re.Match[str]) -> str:
        command = example["command"]
        return f"```console\n$ forebay {command}\n{printed(command)}```"

    return EXAMPLE.sub(run, page)


def test_worked_examples_print_what_the_page_shows() -> None:
    page = PAGE.read_text(encoding="utf-8")
    commands = [example["command"].split()[1] for example in EXAMPLE.finditer(page)]
    assert set(commands) == {"kv", "gpus", "pool", "breakeven", "remote", "ssd", "cost"}
    assert rewritten(page) == page


def test_every_preset_has_its_source_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in [*SOURCES, *DRIVES, *MODELS]:
        assert f"`{name}`" in page, name


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
