"""`forebay doctor`: finds problems of this machine and these settings, and says what to do."""

import argparse
import importlib.metadata
import json
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from forebay.bench.result.files import read_json
from forebay.cli import flags, progress
from forebay.cli.engine import serve
from forebay.cli.flags import Commands
from forebay.cli.parser import Command
from forebay.cli.plan.inputs import read_model
from forebay.engines.start.vllm import TRANSFER_FLAG
from forebay.engines.start.vllm_flags import VllmFlags, read_flags
from forebay.errors import SettingsError
from forebay.files import read_regular
from forebay.observe.doctor.facts import PREFILL_TPS, DoctorInputs, DoctorModel, Facts
from forebay.observe.doctor.finding import DoctorFinding, Severity
from forebay.observe.doctor.prompts.layout import read_prompts
from forebay.observe.doctor.run import CHECKS, examine, is_bad
from forebay.plan.model.config import KV_BITS
from forebay.plan.number import real
from forebay.quantity import parse_size
from forebay.report.escaping import escaped
from forebay.report.text import LINE_LETTERS

_REQUEST_BYTES_MAX: Final = 16 << 20
_SETTINGS: Final = (
    "dram",
    "disk",
    "socket",
    "allow_uid",
    "huge_pages",
    "encryption",
    "numa",
    "weights_id",
    "chunk_tokens",
    "min_tokens",
    "read_depth",
    "write_depth",
)
_SERVED: Final = ("dram", "disk", "weights_id", "allow_uid")  # flags of forebay serve
_EPILOG = """\
examples:
  forebay doctor
  forebay doctor --dram 64GiB --disk /mnt/nvme/forebay:1TB --model Qwen3-8B --prefill-tps 20000
  forebay doctor --dram 64GiB --gpu-cache 60GiB -- forebay serve Qwen/Qwen3-8B -tp 2
  forebay doctor --socket /run/forebay/pool.sock --json
  forebay doctor --prompts requests.jsonl

Give it what you give forebay pool; after -- the engine's command, forebay serve or vllm serve. It
changes nothing. Directories that no pool is using are measured for a second each, with 64 MiB that
are removed again. Exit status: 0 nothing is worse than a note, 1 there are warnings or problems, 2
it could not begin. docs/doctor.md lists all checks.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "doctor",
        description="Check this machine, these settings and this engine for what is in the way.",
        epilog=_EPILOG,
    )
    flags.add_settings(parser, _SETTINGS)
    parser.add_argument("--model", metavar="MODEL", help="a directory, a config.json, or a name")
    parser.add_argument(
        "--prefill-tps",
        type=flags.RATE,
        metavar="P",
        help=f"prompt tokens/s that the engine computes (default: {PREFILL_TPS:.0f} are assumed)",
    )
    parser.add_argument("--gpu-cache", metavar="SIZE", help="of the engine's own KV cache")
    parser.add_argument(
        "--request", metavar="FILE", help="the JSON body of a request, as clients send it"
    )
    parser.add_argument(
        "--prompts", metavar="FILE", help="JSON lines, each the body of a request, to compare them"
    )
    parser.add_argument(
        "--measure",
        action=argparse.BooleanOptionalAction,
        help="measure drives (default: those that no pool is using)",
    )
    parser.add_argument("--vllm-args", metavar="TEXT", help="vLLM's arguments, in one text")
    parser.add_argument("passed_on", nargs="*", metavar="-- COMMAND")
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    facts = Facts(_inputs(parsed))
    with progress.shown() as show:
        findings = examine(facts, CHECKS, show)
    print(json.dumps(_as_json(findings), indent=2) if parsed.json else _readable(findings))
    return 1 if is_bad(findings) else 0


def _inputs(parsed: argparse.Namespace) -> DoctorInputs:
    """Read and check all arguments; a SettingsError names what is invalid."""
    vllm = _vllm_flags(parsed)
    if parsed.prefill_tps is not None:
        real("prefill_tps", parsed.prefill_tps, most=1e12)
    cache_bytes = None if parsed.gpu_cache is None else parse_size(parsed.gpu_cache)
    return DoctorInputs(
        settings=flags.read_settings(parsed),
        model=_model(parsed.model, vllm),
        prefill_tps=parsed.prefill_tps,
        gpu_cache_bytes=cache_bytes,
        vllm=vllm,
        request=None if parsed.request is None else _body(parsed.request),
        prompts=None if parsed.prompts is None else read_prompts(parsed.prompts),
        measures=parsed.measure,
        environment=os.environ,
        vllm_version=_installed("vllm"),
    )


def _vllm_flags(parsed: argparse.Namespace) -> VllmFlags | None:
    """The engine's flags; those that belong to `forebay serve` itself are used as settings."""
    words: list[str] = list(parsed.passed_on)
    if words and "--" not in parsed.words:
        raise SettingsError(f"'{words[0][:80]}' is no flag of forebay doctor; see its --help.")
    if parsed.vllm_args is not None:
        try:
            words += shlex.split(parsed.vllm_args)
        except ValueError:
            raise SettingsError("--vllm-args has a quotation mark without its second.") from None
    if words and Path(words[0]).name == "forebay":
        return _served_flags(parsed, words[1:])
    return read_flags(words) if words else None


def _served_flags(parsed: argparse.Namespace, words: Sequence[str]) -> VllmFlags:
    """The flags of vLLM in a `forebay serve` command; its own go to `parsed` unless given there."""
    if not words or words[0] != "serve":
        raise SettingsError("After -- give the command of an engine: forebay serve or vllm serve.")
    parser = flags.Parser(prog="forebay")
    parser.add_commands("commands", "COMMAND", [Command("serve", "", serve.__name__)])
    served = parser.parse_args(words)
    serve.settings_of(served)  # raises, as the command itself would
    for name in _SERVED:
        if getattr(parsed, name) is None:
            setattr(parsed, name, getattr(served, name))
    parsed.socket = served.pool if parsed.socket is None else parsed.socket
    found = read_flags([*([served.model] if served.model else []), *served.passed_on])
    if found.connector is not None:
        raise SettingsError(f"forebay serve writes {TRANSFER_FLAG} itself; leave it out.")
    return replace(found, connector="ForebayConnector")


def _model(name: str | None, vllm: VllmFlags | None) -> DoctorModel | None:
    """The model that is named here, else the one in vLLM's flags; None if neither names one."""
    wanted = name or (vllm.model if vllm else "")
    if not wanted:
        return None
    bits = KV_BITS.get(vllm.kv_dtype) if vllm else None
    directory = wanted if Path(wanted).is_dir() else _hub_directory(wanted)
    for candidate in dict.fromkeys((directory or wanted, wanted, wanted.rpartition("/")[2])):
        try:
            shape = read_model(candidate, bits).shape
        except SettingsError:
            continue
        return DoctorModel(wanted, directory, shape, _is_encoder_decoder(directory))
    if name and not directory:
        read_model(name, bits)  # raises, with what is wrong
    return DoctorModel(wanted, directory, None, _is_encoder_decoder(directory))


def _hub_directory(name: str) -> str:
    """The directory of a model's newest files in the hub's cache; empty if it has none."""
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))
    try:
        snapshots = [
            path
            for path in (cache / f"models--{name.replace('/', '--')}" / "snapshots").iterdir()
            if (path / "config.json").exists()
        ]
    except (OSError, ValueError):
        return ""
    return str(max(snapshots, key=lambda path: path.stat().st_mtime)) if snapshots else ""


def _is_encoder_decoder(directory: str) -> bool:
    if not directory:
        return False
    try:
        return bool(read_json(Path(directory, "config.json")).get("is_encoder_decoder"))
    except SettingsError:
        return False


def _body(path: str) -> dict[str, Any]:
    """The members of a request's body that are checked; its text is not kept."""
    try:
        found = json.loads(read_regular(path, _REQUEST_BYTES_MAX))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SettingsError(f"'{path}' is no JSON object; write the body of a request into it.")
    return {name: found[name] for name in ("cache_salt", "prompt_logprobs") if name in found}


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _as_json(findings: Sequence[DoctorFinding]) -> dict[str, Any]:
    return {
        "version": 1,
        "clean": not is_bad(findings),
        "findings": [finding._asdict() for finding in findings],
    }


def _readable(findings: Sequence[DoctorFinding]) -> str:
    """The findings by group, each with its severity before it and its advice below."""
    lines: list[str] = []
    group = None
    for finding in findings:
        if finding.group != group:
            group = finding.group
            lines += ["", str(group)] if lines else [str(group)]
        head = f"  {finding.severity:<8} "
        indent = " " * len(head)
        text = escaped(f"{finding.sentence} [{finding.check}]")
        lines += wrap(text, LINE_LETTERS, initial_indent=head, subsequent_indent=indent)
        if finding.advice:
            lines += wrap(
                escaped(finding.advice),
                LINE_LETTERS,
                initial_indent=f"{indent}-> ",
                subsequent_indent=f"{indent}   ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join([*lines, "", _summary(findings)])


def _summary(findings: Sequence[DoctorFinding]) -> str:
    counted = Counter(finding.severity for finding in findings)
    parts = [
        f"{counted[severity]} {severity}{'s' if counted[severity] != 1 else ''}"
        for severity in (Severity.PROBLEM, Severity.WARNING, Severity.NOTE)
    ]
    made = len({each.check for each in findings if each.severity is not Severity.SKIPPED})
    left = len({each.check for each in findings}) - made
    return f"Checks made: {made}, left out: {left}. Found: {', '.join(parts)}."
