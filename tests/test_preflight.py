"""Before anything is downloaded, what this machine lacks is one sentence with its cure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OLD = '#!/bin/sh\n[ "$1" = -V ] && { echo Python 3.8.10; exit; }\nexit 1\n'
NO_VENV = '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\nexit 0\n'


def preflight(python: str, *mode: str, path: str | None = None) -> tuple[int, str]:
    command = ["sh", str(ROOT / "tools" / "preflight.sh"), python, *mode]
    variables = {**os.environ, **({} if path is None else {"PATH": path})}
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=variables
    )
    return ended.returncode, ended.stderr


def test_this_machine_will_do() -> None:
    assert preflight(sys.executable) == (0, "")


def test_vllm_needs_more(tmp_path: Path) -> None:
    """A disk of 1 GB will do for Forebay alone."""
    df = tmp_path / "df"
    df.write_text('#!/bin/sh\nprintf "head\\n/dev/sda 9 9 1000 9%% /\\n"\n')
    df.chmod(0o700)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert preflight(sys.executable, path=path) == (0, "")
    status, err = preflight(sys.executable, "vllm", path=path)
    assert status == 2
    assert "MB of disk are needed here and 1000 MB are free" in err


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
