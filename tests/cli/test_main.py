"""The command line: every command explains itself, and what cannot begin is one sentence."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.cli.flags import Parser, add_settings, read_settings
from forebay.cli.main import build_parser, main
from forebay.settings import NAMES

COMMANDS = ["serve", "demo", "pool", "stats", "set", "clear", "check", "plan", "sim", "completion"]
COMMANDS += ["top", "why", "health", "doctor", "remote", "gateway"]
COMMANDS += [f"bench {name}" for name in ("ab", "compare", "pool", "serve")]
COMMANDS += [f"plan {name}" for name in ("kv", "gpus", "pool", "breakeven", "ssd", "cost")]


@pytest.mark.parametrize("command", ["", "bench", *COMMANDS])
def test_help_explains(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: forebay {command}".rstrip())
    assert command not in COMMANDS or "examples:\n  forebay" in out


@pytest.mark.parametrize(
    "arguments", [[], ["nothing"], ["check"], ["check", "a", "b"], ["bench", "pool", "--jso"]]
)
def test_a_bad_command_line_is_one_sentence(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("forebay: ")
    assert err.endswith("--help.\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("statz", "'statz' is not a command of forebay (did you mean stats?)"),
        ("bench sreve", "'sreve' is not a command of forebay bench (did you mean serve?)"),
        ("plan pol", "'pol' is not a command of forebay plan (did you mean pool?)"),
        ("stats --jsn", "--jsn is not a flag of forebay stats (did you mean --json?)"),
        ("zzz", "'zzz' is not a command of forebay"),
    ],
)
def test_what_was_probably_meant_is_named(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    command = meant.partition(" of ")[2].partition(" (")[0]
    assert capsys.readouterr().err == f"forebay: {meant}; see {command} --help.\n"


def test_with_json_an_error_is_an_object_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for words in (["stats", "--json", "--socket", f"{tmp_path}/none"], ["plan", "kv", "--json"]):
        assert main(words) == 2
        said = capsys.readouterr()
        error = json.loads(said.out)
        assert error["exit_status"] == 2
        assert said.err == f"forebay: {error['error']}\n"
    assert main(["serve", "--", "--json"]) == 2  # vLLM's word, not ours
    assert capsys.readouterr().out == ""


# What no command may import that only looks: seconds of CPU time, on some machines.
HEAVY = {"numpy", "aiohttp", "rich", "asyncio", "multiprocessing", "concurrent", "torch"}
HEAVY |= {
    "forebay.sim",
    "forebay.engines",
    "forebay.cli.plan",
    "forebay.cli.sim",
    "prometheus_client",
}
SERVER = {"forebay.pool.core", "forebay.pool.server", "forebay.tiers.disk", "forebay.observe"}
WITHOUT: dict[str, set[str]] = {
    "--version": {"forebay.settings", "msgspec", "http"},
    "--help": {"forebay.settings", "msgspec", "http"},
    "bench --help": {"forebay.bench", "forebay.settings", "msgspec", "http"},
    "stats": SERVER | {"forebay.plan.model", "http"},
    "health": SERVER | {"forebay.plan.model"},
}


@pytest.mark.parametrize("words", WITHOUT)
def test_a_command_imports_only_what_it_needs(words: str, tmp_path: Path) -> None:
    """Modules are counted, not seconds: what starts fast on one machine starts fast on all."""
    program = (
        "import sys\nfrom forebay.cli.main import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "print(*sorted(sys.modules), sep='\\n', file=sys.stderr)"
    )
    arguments = words.split()
    if words in {"stats", "health"}:
        arguments += ["--socket", str(tmp_path / "none.sock")]
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = set(ended.stderr.splitlines())
    assert "forebay.cli.main" in imported
    assert not imported & (HEAVY | WITHOUT[words])
    assert len([name for name in imported if name.startswith("forebay")]) <= 64


def test_every_setting_can_be_a_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parser = Parser(prog="forebay")
    add_settings(parser, NAMES)
    file = tmp_path / "forebay.toml"
    file.write_text("load_deadline_ms = 5\nwrite_depth = 9\n")
    monkeypatch.setenv("FOREBAY_WRITE_DEPTH", "2")
    given = ["--no-verify-dram", "--huge-pages", "--allow-uid", "7", "--allow-uid", "8"]
    found = read_settings(parser.parse_args([*given, "--config", str(file)]))
    assert (found.verify_dram, found.huge_pages, found.allow_uid) == (False, True, (7, 8))
    assert (found.write_depth, found.load_deadline_ms) == (2, 5.0)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "--lookup-deadline-ms NUMBER" in capsys.readouterr().out


def test_an_unknown_variable_is_refused_by_every_command_that_reads_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FOREBAY_DISKS", "x")
    assert main(["bench", "pool", "--disk", f"{tmp_path}:1GiB"]) == 2
    assert "FOREBAY_DISKS is not a setting; did you mean FOREBAY_DISK?" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m forebay.cli.main --help | head -c 1"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert ended.stderr == ""


@pytest.mark.parametrize(
    "command",
    [
        "doctor --prefill-tps 38k",
        "remote check file:///mnt/a?cap=1GiB --prefill-tps 38k",
        "plan breakeven Qwen3-8B --prefill-tps 38k",
        "plan remote Qwen3-8B --prefill-tps 38k",
    ],
)
def test_a_rate_is_written_alike_for_every_command(command: str) -> None:
    known = build_parser().parse_args(shlex.split(command.partition(" --store")[0]))
    assert known.prefill_tps == 38_000
