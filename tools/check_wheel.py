"""Try a built wheel as its user would: `check_wheel.py WHEEL [--beside PYTHON]`.

It is installed in an empty environment; a plan is made, a pool is started, asked for its health and
stopped, `forebay serve` says what is missing, and after uninstalling no file of it is left. With
`--beside`, it is installed into a copy of the environment of that Python, which has vLLM: no other
package may change, and vLLM must find the connector by its name.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

HANG_S = 300
FIND = """
from types import SimpleNamespace
from vllm.plugins import load_general_plugins
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
load_general_plugins()
config = SimpleNamespace(kv_connector="ForebayConnector", kv_connector_module_path=None)
print(KVConnectorFactory.get_connector_class(config).__module__)
"""


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
    venv.create(place / "environment", with_pip=True)
    python = place / "environment/bin/python"
    before = files(place / "environment")
    pip(python, "install", str(wheel))
    forebay = place / "environment/bin/forebay"
    print(told([forebay, "--version"]).strip(), "is installed")
    told([forebay, "plan", "kv", "Qwen3-8B", "--tokens", "8192"])
    try_pool(forebay, place)
    ended = subprocess.run(
        [forebay, "serve", "Qwen/Qwen3-8B"], capture_output=True, text=True, check=False
    )
    must(ended.returncode == 2 and "pip install" in ended.stderr, ended.stderr)
    pip(python, "uninstall", "--yes", "forebay")
    left = [path for path in files(place / "environment") - before if "forebay" in path]
    must(not left, f"left behind: {left}")
    print("quick start: a pool was started and asked, and nothing is left after uninstalling")


def try_pool(forebay: Path, place: Path) -> None:
    os.environ["XDG_RUNTIME_DIR"] = str(place)
    socket, disk = place / "pool.sock", place / "disk"
    disk.mkdir(mode=0o700)
    flags = ["--socket", str(socket), "--dram", "64MiB", "--disk", f"{disk}:64MiB"]
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
    shutil.copytree(python.parent.parent, copy, symlinks=True)
    python = copy / "bin/python"
    pip(python, "uninstall", "--yes", "forebay")
    before, faults = versions(python), check(python)
    pip(python, "install", f"{wheel}[vllm]")
    after = versions(python)
    must(after.pop("forebay", "") != "", "it is not there")
    must(after == before, f"changed: {set(after.items()) ^ set(before.items())}")
    must(check(python) == faults, "pip check says something new")
    must("forebay.engines.vllm.connector" in told([python, "-c", FIND]), "vLLM does not find it")
    print(
        f"beside vLLM: none of {len(after)} packages changed, and vLLM finds the connector by name"
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


def told(command: list[str | Path]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    must(ended.returncode == 0, f"{command}: {ended.stderr[-2000:]}")
    return ended.stdout


def must(holds: bool, why: str) -> None:
    if not holds:
        sys.exit(f"forebay: the wheel is not right: {why}")


if __name__ == "__main__":
    main()
