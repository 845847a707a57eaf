"""Before anything is downloaded, what this machine lacks is one sentence with its cure."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OLD = '#!/bin/sh\n[ "$1" = -V ] && { echo Python 3.8.10; exit; }\nexit 1\n'
NO_VENV = '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\nexit 0\n'


def preflight(python: str) -> tuple[int, str]:
    command = ["sh", str(ROOT / "tools" / "preflight.sh"), python]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr


def test_this_machine_will_do() -> None:
    assert preflight(sys.executable) == (0, "")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, ["was not found", "apt-get install python3"]),
        (OLD, ["is Python 3.8.10", "3.11 to 3.14 is needed", "make PYTHON="]),
        (NO_VENV, ["no venv module", "apt-get install python3-venv"]),
    ],
)
def test_what_is_missing_is_named_with_its_cure(
    tmp_path: Path, script: str | None, words: list[str]
) -> None:
    python = tmp_path / "a python"
    if script is not None:
        python.write_text(script)
        python.chmod(0o700)
    status, err = preflight(str(python))
    assert status == 2
    assert err.startswith("forebay: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
