"""`forebay serve`: vLLM's OpenAI-compatible server with the pool beneath it.

After all checks this process becomes vLLM itself, so that signals reach it, and a supervisor
watches vLLM directly.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from forebay.cli import flags, logs
from forebay.cli.flags import Commands
from forebay.cli.plan.inputs import read_model
from forebay.engines.start import demo_model, vllm
from forebay.errors import SettingsError, StartupError
from forebay.plan.model.support import why_declined
from forebay.pool import service
from forebay.pool.address import find_address, prepare
from forebay.settings import Settings

_log: Final = logging.getLogger("forebay")
# The flags with which vLLM may be given its model.
_NAMES_A_MODEL: Final = ("--model", "--model-tag", "--config")
_EPILOG = """\
examples:
  forebay serve
  forebay serve Qwen/Qwen3-8B --dram 64GiB --disk /mnt/nvme/forebay:1TB --port 8001
  forebay serve Qwen/Qwen3-8B --pool /run/forebay/pool.sock --max-model-len 32768

Every argument that is not listed here goes to vLLM, and so does everything after --. Without MODEL
it serves a small demo model. Without --pool the engine joins this user's pool, or starts one with
--dram and --disk that ends ten minutes after its last engine. Other settings are read from FOREBAY_
variables; docs/serve.md has those, and how to start vLLM yourself. Exit status: vLLM's, or 2 if it
could not begin.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "serve",
        description="Run vLLM's OpenAI-compatible server with its KV cache on the pool.",
        epilog=_EPILOG,
        usage="forebay serve [MODEL] [--dram SIZE] [--disk DIR:SIZE] [--pool SOCKET]"
        " [--pool-optional] [--allow-uid ID] [--weights-id NAME] [--strict] [vLLM arguments]",
    )
    parser.passes_on = True
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a directory or a hub's name")
    # No --config: vLLM has one of its own.
    flags.add_settings(
        parser, ["dram", "disk", "weights_id", "strict", "allow_uid"], has_file=False
    )
    parser.add_argument("--pool", metavar="SOCKET", help="join this pool, or fail")
    parser.add_argument(
        "--pool-optional", action="store_true", help="serve without a pool until there is one"
    )
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    settings = settings_of(parsed)
    vllm.require()
    arguments, is_demo = _arguments(parsed.model, parsed.passed_on)
    logs.start("forebay: %(message)s")
    _judge(parsed.model, settings)
    socket_path = _pool_path(settings)
    command = vllm.command(arguments, vllm.transfer_config(settings, socket_path))
    variables = vllm.environment(settings, os.environ, offline=is_demo)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, variables)  # noqa: S606 - no shell, as it should be


def _judge(model: str | None, settings: Settings) -> None:
    """Report that an engine would be declined, before it loads its model from a directory."""
    if model is None or not Path(model).is_dir():
        return
    try:
        why = why_declined(read_model(model, None).shape)
    except SettingsError:  # an architecture that the planner does not know, but vLLM may
        return
    if why and settings.strict:
        raise StartupError(f"Forebay is strict and cannot share: {why}.")
    if why:
        _log.warning("Forebay will be disabled for this engine: %s.", why)


def _pool_path(settings: Settings) -> str:
    """The path of the engine's pool; obstacles are reported before a model is loaded.

    Only the engine knows whether it can share, so the engine itself starts a pool.
    """
    if settings.no_pool != "start":
        return service.join_or_start(settings)
    for disk in settings.disk:
        if not Path(disk.path).is_dir():
            raise StartupError(
                f"{disk.path} is not a directory; create it with: mkdir -m 700 {disk.path}"
            )
    address = find_address(settings.socket)
    if address.is_default:
        prepare(address)  # given a path, the engine would not create this directory
    return address.path


def settings_of(parsed: argparse.Namespace) -> Settings:
    """The settings from flags and variables; with `--pool`, a pool is joined and never started."""
    settings = flags.read_settings(parsed)
    if parsed.pool is not None:
        if parsed.dram is not None or parsed.disk is not None:
            raise SettingsError("--pool joins a pool as it is; give --dram and --disk to that one.")
        settings = replace(settings, socket=parsed.pool, no_pool="fail")
    if parsed.pool_optional:
        settings = replace(settings, no_pool="serve")
    return settings


def _arguments(model: str | None, passed_on: Sequence[str]) -> tuple[list[str], bool]:
    """The arguments for vLLM, the user's last so that they win; and if it is the demo model."""
    given = {word.partition("=")[0] for word in passed_on}
    if vllm.TRANSFER_FLAG in given:
        raise SettingsError(
            f"forebay serve writes {vllm.TRANSFER_FLAG} itself; to write another, start vLLM as"
            " docs/serve.md says."
        )
    if model is not None:
        return ["--model", model, *passed_on], False
    if given & set(_NAMES_A_MODEL):
        return list(passed_on), False
    if not demo_model.is_ready():
        print("forebay: converting the demo model, once", file=sys.stderr)
    ours = ["--model", demo_model.prepare(), *demo_model.ARGUMENTS, *demo_model.SERVE_ARGUMENTS]
    return [*ours, *demo_model.dtype_arguments(), *passed_on], True
