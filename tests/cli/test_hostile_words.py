"""Whatever is typed, a command ends in time, without a traceback and with one line (F9)."""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests import pool_process
from tests.cli import hostile_child

from forebay.cli.flags import Parser
from forebay.cli.main import build_parser, main

RUNS: Final = 150  # of a seed
LETTERS_MAX: Final = 2100  # of an error
NOWHERE: Final = "http://127.0.0.1:9"
# A command line of each command that ends soon; with a hostile word in it, it ends sooner.
SOUND: Final = {
    "serve": ["model"],
    "demo": ["--dir", "none"],
    "pool": ["--dram", "4MiB", "--linger", "0", "--socket", "{place}/s"],
    "stats": ["--socket", "{place}/none"],
    "why": ["request", "--last", "3", "--socket", "{place}/none"],
    "set": ["dram=8MiB", "--socket", "{place}/none"],
    "clear": ["--all", "--socket", "{place}/none"],
    "check": ["directory"],
    "doctor": ["--socket", "{place}/none", "--no-measure"],
    "bench ab": ["--off", NOWHERE, "--on", NOWHERE],
    "bench serve": ["--url", NOWHERE, "--model", "model"],
    "bench compare": ["result.json", "result.json"],
    "bench pool": ["--disk", "directory:64MiB", "--seconds", "1"],
    "plan kv": ["Qwen3-8B"],
    "plan gpus": ["--target-req-s", "9", "--bench", "result.json", "--measured-gpus", "8"],
    "plan pool": ["Qwen3-8B", "--trace", "trace.jsonl"],
    "plan breakeven": ["Qwen3-8B", "--prefill-tps", "100"],
    "plan ssd": ["--writes-per-day", "1TB", "--capacity", "1TB", "--dwpd", "1"],
    "plan cost": ["result.json", "result.json", "--clients", "64"],
    "sim": ["--trace", "trace.jsonl", "--dram-tokens", "2k"],
}
# None names what is not the test's own: commands write, and create locks, where they are told to.
WORDS: Final = [
    *("", " ", "-", "--", "--as=2GiB", "{", "'", "%s{0}", "x" * 5000, "é" * 300),
    *("a\nb\x1b[31m\r\x07", "\udcff", "\u202e", "directory\udcff\n", "directory\udcff\n:64MiB"),
    *("pipe", "loop", "sparse", "deep.toml", "deep.json", "deep.jsonl", "digits.toml"),
    *("control.toml", "control.json", "binary", "directory", "directory:64MiB", "result.json"),
    *("0", "-1", "nan", "inf", "1e26", "1e400", "1e-300", "9" * 26, "9" * 5000, "٣", "²", "0x10"),
    *("http://\udcff:9", "http://é..é:9", f"http://{'a' * 70}:9", "http://a\nb:9", "http://[::1"),
    *("http://h:99999", f"{NOWHERE}/\udcff", "http://\u2100", "a=http://\udcff:9", "a='", "a=b"),
    *("disk=\udcff:64MiB", "dram=\udcff", "disk=a\nb:64MiB", "1,2,3,...,9999", "1,1,1,...,9"),
]
# What hung, or ended with a traceback.
KNOWN: Final = [
    ["bench", "ab", "", "--off", "http://127.0.0.1:9", "--on", "http://127.0.0.1:9"],
    ["stats", "--config", "deep.toml"],
    ["stats", "--config", "digits.toml"],
    ["stats", "--config", "/dev/zero"],
    ["stats", "--config", "pipe"],
    ["sim", "--trace", "pipe", "--dram-tokens", "2k"],
    ["sim", "--trace", "trace.jsonl", "--dram-tokens", "2k", "--users", "1" + "0" * 26],
    ["sim", "--trace", "trace.jsonl", "--dram-tokens", "2k", "--plot", "pipe"],
    ["pool", "--inherited-lock", "9" * 26],
    ["pool", "--linger", "9" * 5000],
    ["pool", "--dram", "9" * 26],
    ["pool", "--read-depth", "9" * 5000],
    ["pool", "--dram", "4MiB", "--linger", "0", "--socket", "a\nb\x1b[31m\r\x07"],
    ["plan", "kv", "pipe"],
    ["bench", "serve", "--url", NOWHERE, "--model", "\udcff"],
    ["bench", "serve", "--url", "http://é..é:9"],
    ["bench", "ab", "--off", NOWHERE, "--on", NOWHERE, "--clients=--"],
    ["bench", "ab", "--off", NOWHERE, "--on", NOWHERE, "--also", "a='"],
]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with files that are not what they should be."""
    with pool_process.short_directory() as made:
        (made / "deep.toml").write_text("a = " + "[" * 100_000)
        (made / "deep.json").write_text("[" * 100_000)
        nested = '[{"type":"subagent","requests":'
        line = f'{{"id":"a","block_size":64,"requests":{nested * 900}[]{"}]" * 900}}}\n'
        (made / "deep.jsonl").write_text(line)
        (made / "digits.toml").write_text("read_depth = " + "9" * 5000)
        (made / "control.toml").write_text('"a\\u001b[31m\\nb" = 1\n')
        step = {"clients": 16, "req_s": 3.4, "tpot_ms": {"mean": 38.8}}
        (made / "result.json").write_text(json.dumps({"steps": [step]}))
        named = {"steps": [step], "name": "a\x1b[31m\nb", "model_type": "a\x1b[31m\nb"}
        (made / "control.json").write_text(json.dumps(named))
        (made / "binary").write_bytes(bytes(range(256)))
        (made / "trace.jsonl").write_text(
            '{"timestamp": 0, "input_length": 1024, "hash_ids": [1, 2]}\n'
        )
        (made / "directory").mkdir(mode=0o700)
        (made / "directory\udcff\n").mkdir(mode=0o700)
        (made / "loop").symlink_to("loop")
        os.mkfifo(made / "pipe")
        with (made / "sparse").open("wb") as sparse:
            sparse.truncate(1 << 40)
        yield made


def lines_with_hostile_words(place: Path, seed: int) -> list[list[str]]:
    """Each puts one word into one place of a sound command line."""
    luck = random.Random(seed)
    found = []
    for _ in range(RUNS):
        command = luck.choice(list(SOUND))
        words = [word.format(place=place) for word in SOUND[command]]
        # A number may be a sound --linger, and the pool would serve so long.
        hostile = luck.choice([w for w in WORDS if command != "pool" or not w[:1].isdecimal()])
        flags = [
            action.option_strings[0]
            for action in parser_of(command)._actions
            if action.option_strings and action.nargs != 0
        ]
        at = luck.choice([*flags, "behind", "before", "instead"])
        if at == "behind":
            words.append(hostile)
        elif at == "before":
            words.insert(0, hostile)
        elif at == "instead":
            words[luck.randrange(len(words))] = hostile
        elif at in words:
            words[words.index(at) + 1] = hostile
        else:
            words.append(f"{at}={hostile}")
        found.append([*command.split(), *words])
    return found


def parser_of(command: str) -> Parser:
    parser: Parser = build_parser()
    for name in command.split():
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parser = action.choices[name]
    return parser


def environment(place: Path) -> dict[str, str]:
    """No settings but the command line's."""
    own = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"), str(place))
    return {**pool_process.environment(), **own}


def assert_is_fit_to_print(status: object, out: str, err: str) -> None:
    assert status in {0, 1, 2}, err
    assert "Traceback" not in out + err
    odd = {letter for letter in out + err if not letter.isprintable()} - {"\n"}
    assert not odd, (out, err)
    if status == 2:
        *logged, last = err.splitlines()
        assert last.startswith("forebay: "), err
        assert len(last) <= LETTERS_MAX
        assert all(" INFO " in line or line.startswith("forebay: ") for line in logged), err


def run_all(place: Path, lines: list[list[str]]) -> None:
    child = subprocess.run(
        [sys.executable, hostile_child.__file__, str(place)],
        input="".join(json.dumps(line) + "\n" for line in lines),
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [json.loads(line) for line in child.stdout.splitlines()]
    for line, answer in zip(lines, answers, strict=False):
        try:
            assert_is_fit_to_print(*answer)
        except AssertionError as error:
            raise AssertionError(f"forebay {line!r}"[:500]) from error
    assert len(answers) == len(lines), (lines[len(answers)], child.stderr[-2000:])


def test_what_hung_or_raised_is_one_line(place: Path) -> None:
    run_all(place, KNOWN)


@pytest.mark.long
def test_any_command_with_any_word_ends_in_one_line(place: Path, seed: int) -> None:
    run_all(place, lines_with_hostile_words(place, seed))


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        [b"stats", b"--config", b"/dev/zero"],
        [b"stats", b"--socket", b"\xff\n\x1b[31m"],
        [b"check", b"\xff\n"],
        [b"bench", b"serve", b"--url", b"http://\xff\n/"],
        [b"plan", b"kv", b"a\n\x1b]0;title\x07"],
    ],
)
def test_a_process_of_its_own_says_one_line(place: Path, words: list[bytes]) -> None:
    """With bytes that are no text, as only a real command line has them."""
    ended = subprocess.run(
        [sys.executable, "-m", "forebay.cli", *words],
        cwd=place,
        env=environment(place),
        capture_output=True,
        check=False,
        timeout=pool_process.HANG_S,
    )
    assert ended.returncode == 2
    assert_is_fit_to_print(ended.returncode, ended.stdout.decode(), ended.stderr.decode())
    assert ended.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--as=2GiB"], "--as is not a flag of forebay; see forebay --help."),
        (["pool", "--as=2GiB"], "--as is not a flag of forebay pool; see forebay pool --help."),
        (["check", "--as=2GiB"], "--as is not a flag of forebay check; see forebay check --help."),
        (
            ["sim", "--tra", "x"],
            "--tra is not a flag of forebay sim (did you mean --trace?); see forebay sim --help.",
        ),
    ],
)
def test_an_unknown_flag_is_named_before_what_is_missing(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == f"forebay: {said}\n"


def test_output_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "forebay.cli", "plan", "cost", "--clients", "64"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 2
    assert ended.stderr == "forebay: the system refused: No space left on device.\n"
