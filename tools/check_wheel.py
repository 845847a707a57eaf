"""Try a built wheel as its user would: `check_wheel.py WHEEL [--beside PYTHON]`.

In an empty environment the lines of README's "Start it" are run as they are printed, as far as
neither a model hub nor vLLM is needed: the wheel instead of the clone, a directory of ours and
small sizes. A pool with those settings is started, asked for its health and stopped,
`forebay serve` says what is missing, and after uninstalling no file of it is left. With `--beside`,
it is installed into a copy of the environment of that Python, which has vLLM: `pip check` and every
version must be the same before and after, and vLLM must take README's line and find the connector
by its name.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HANG_S = 300
README = Path(__file__).parent.parent / "README.md"
DIRECTORY = "/mnt/nvme/forebay"
SIZES = {"64GiB": "64MiB", "1TB": "64MiB"}
# What vLLM makes of a command line: its own parser, its own factory.
FIND = """
import json, sys
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.plugins import load_general_plugins
load_general_plugins()
config = KVTransferConfig(**json.loads(sys.argv[1]))
print(KVConnectorFactory.get_connector_class(config).__module__)
"""
# What Forebay makes of it, without vLLM.
SETTINGS = """
import json, sys
from types import SimpleNamespace
from forebay.engines.start.vllm import settings_of
settings = settings_of(SimpleNamespace(**json.loads(sys.argv[1])))
print(settings.dram, *(f"{disk.path}:{disk.cap_bytes}" for disk in settings.disk))
"""


@dataclass(frozen=True)
class QuickStart:
    """README's lines, as words."""

    install: list[str]
    mkdir: list[str]
    vllm: list[str]
    forebay: list[str]

    @property
    def transfer(self) -> str:
        """What its line gives to vLLM."""
        return self.vllm[self.vllm.index("--kv-transfer-config") + 1]


def printed() -> QuickStart:
    """What README prints under "Start it"; any other line there has to be tried here first."""
    section = README.read_text().split("\n## Start it\n")[1].split("\n## ")[0]
    block = re.search(r"^(?:    .+\n)+", section, re.MULTILINE)
    lines = [shlex.split(line) for line in block[0].splitlines()] if block else []
    in_short = re.findall(r"in short `(forebay serve [^`]+)`", section)
    names = [words[:2] for words in lines]
    must(names == [["pip", "install"], ["mkdir", "-m"], ["vllm", "serve"]], f"README: {names}")
    must(len(in_short) == 1, "README has no `forebay serve` in short")
    install, mkdir, vllm = lines
    return QuickStart(install, mkdir, vllm, shlex.split(in_short[0]))


def here(words: list[str], place: Path) -> list[str]:
    """The same words with our directory, and sizes that any machine has."""
    text = "\0".join(words).replace(DIRECTORY, str(place / "disk"))
    for printed_size, size in SIZES.items():
        text = text.replace(printed_size, size)
    return text.split("\0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--beside", type=Path, help="a Python that has vLLM")
    arguments = parser.parse_args()
    wheel = arguments.wheel.resolve(strict=True)
    with tempfile.TemporaryDirectory(prefix="wheel-") as place:
        quick_start(wheel, Path(place))
    if arguments.beside is not None:
        with tempfile.TemporaryDirectory(prefix="beside-", dir="build") as place:
            beside(wheel, arguments.beside, Path(place) / "environment")


def quick_start(wheel: Path, place: Path) -> None:
    lines = printed()
    venv.create(place / "environment", with_pip=True)
    python = place / "environment/bin/python"
    before = files(place / "environment")
    pip(python, *wheel_of(lines.install[1:], wheel))
    forebay = place / "environment/bin/forebay"
    version = told([forebay, "--version"]).strip()
    must(version.split()[-1] == wheel.name.split("-")[1], f"the wheel {wheel.name} is {version}")
    told([forebay, "plan", "kv", "Qwen3-8B", "--tokens", "8192"])
    told(here(lines.mkdir, place))
    settings = told([python, "-c", SETTINGS, here([lines.transfer], place)[0]]).split()
    try_pool(forebay, place, settings)
    serve = here([str(forebay), *lines.forebay[1:]], place)
    ended = subprocess.run(serve, capture_output=True, text=True, check=False)
    must(ended.returncode == 2 and "pip install" in ended.stderr, ended.stderr)
    pip(python, "uninstall", "--yes", "forebay")
    left = [path for path in files(place / "environment") - before if "forebay" in path]
    must(not left, f"left behind: {left}")
    print(f"quick start: {version} runs README's lines, and uninstalls without leaving a file")


def wheel_of(words: list[str], wheel: Path) -> list[str]:
    """An installation's words with the wheel instead of the clone; extras stay."""
    must(any(word.startswith(".") for word in words), f"README installs no clone: {words}")
    return [f"{wheel}{word[1:]}" if word.startswith(".") else word for word in words]


def try_pool(forebay: Path, place: Path, settings: list[str]) -> None:
    """A pool as an engine with these settings starts it."""
    os.environ["XDG_RUNTIME_DIR"] = str(place)
    socket, (dram, disk) = place / "pool.sock", settings
    flags = ["--socket", str(socket), "--dram", dram, "--disk", disk]
    pool = subprocess.Popen([forebay, "pool", *flags, "--metrics-address", "127.0.0.1:0"])
    try:
        until = time.monotonic() + HANG_S
        while not socket.exists() and pool.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        told([forebay, "health", "--socket", socket])
        stats = json.loads(told([forebay, "stats", "--socket", socket, "--json"]))
        must(bool(stats), "stats told nothing")
    finally:
        pool.send_signal(signal.SIGTERM)
        must(pool.wait(HANG_S) == 0, "the pool did not end well")


def beside(wheel: Path, python: Path, copy: Path) -> None:
    lines = printed()
    shutil.copytree(python.parent.parent, copy, symlinks=True)
    python = copy / "bin/python"
    pip(python, "uninstall", "--yes", "forebay")
    before, faults = versions(python), check(python)
    pip(python, *wheel_of(lines.install[1:], wheel))
    after = versions(python)
    must(after.pop("forebay", "") != "", "it is not there")
    must(after == before, f"changed: {set(after.items()) ^ set(before.items())}")
    must(check(python) == faults, "pip check says something new")
    found = told([python, "-c", FIND, lines.transfer])
    must("forebay.engines.vllm.connector" in found, f"vLLM does not find it: {found}")
    pip(python, "uninstall", "--yes", "forebay")
    must(versions(python) == before, "uninstalling changed another package")
    print(
        f"beside vLLM: pip check and all {len(after)} versions are as before, and vLLM finds the"
        " connector by name"
    )


def files(environment: Path) -> set[str]:
    return {str(path) for path in environment.rglob("*")}


def versions(python: Path) -> dict[str, str]:
    listed = json.loads(told([python, "-m", "pip", "list", "--format", "json"]))
    return {package["name"]: package["version"] for package in listed}


def check(python: Path) -> str:
    """What pip finds wrong among the packages, with or without us."""
    return subprocess.run(
        [python, "-m", "pip", "check"], capture_output=True, text=True, check=False
    ).stdout


def pip(python: Path, *arguments: str) -> None:
    quietly = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([str(python), "-m", "pip", *quietly, *arguments], check=True)


def told(command: Sequence[str | Path]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    must(ended.returncode == 0, f"{command}: {ended.stderr[-2000:]}")
    return ended.stdout


def must(holds: bool, why: str) -> None:
    if not holds:
        sys.exit(f"forebay: the wheel is not right: {why}")


if __name__ == "__main__":
    main()
