"""`forebay bench serve`: its result, its words, and a server that goes wrong in mid-run."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import pool_process
from tests.stub_process import StubProcess, stub

from forebay.bench.load.multi_round import MultiRoundQuestions
from forebay.bench.load.workloads import Dialogs, Documents
from forebay.bench.result import files
from forebay.bench.result.format import LoadResult
from forebay.cli.bench import loads
from forebay.cli.main import build_parser, main
from forebay.errors import SettingsError

ABSENT = "forebay: no server answers at http://127.0.0.1:9/v1 (Connection refused).\n"
SMALL = ("--turns", "3", "--first-tokens", "60", "--turn-tokens", "20", "--answer-tokens", "5")
# Tokens so far apart that a client which gets no processor for long still hears some one by one;
# what it hears at once has no time between it.
APART = ("--tpot-ms", "150")


def serve(served: StubProcess, *words: str) -> int:
    return main(["bench", "serve", "--url", served.url, *words])


def parsed(*words: str) -> Any:
    return build_parser().parse_args(["bench", "serve", "--url", "http://a", *words])


def test_a_result_has_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out.json"
    with stub("--cached") as served:
        words = (*SMALL, "--clients", "1,2", "--interleave", "2", "--out", str(out), "--json")
        assert serve(served, *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(out.read_text())
    result = files.read(out)
    assert isinstance(result, LoadResult)
    assert [step.clients for step in result.steps] == [1, 2]
    assert (result.model, result.url) == ("stub", served.url + "/v1")
    assert result.workload["turns"] == 3
    assert result.machine is not None
    assert result.machine.cores > 0
    assert "forebay" in result.versions
    assert result.commands[0].startswith("forebay ")
    for step in result.steps:
        assert step.requests == 6 * step.clients
        assert step.output_tokens == 30 * step.clients
        for times in (step.ttft_ms, step.tpot_ms, step.e2e_ms):
            assert times is not None
            assert times.p50 is not None
            assert times.p95 is not None
            assert times.p99 is not None
            assert times.p50 <= times.p95 <= times.p99
        assert [turn.requests for turn in step.turns] == [2 * step.clients] * 3
        assert step.cached_tokens == 0
        assert step.server is not None
        assert (step.server.running_mean, step.server.kv_use_max) == (2.0, 0.5)
        assert step.server.preemptions == step.requests
        assert step.server.external_hit_tokens == 100 * step.requests


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    with stub(*APART) as served:
        assert serve(served, *SMALL, "--clients", "1,2", "--tpot-ms", "1e6") == 0
        out = capsys.readouterr().out
        assert serve(served, *SMALL, "--clients", "1", "--tpot-ms", "0.001") == 0
        none = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert "Within mean TPOT <= 1e+06 ms: 2 clients" in out
    assert "none is beyond it" in out
    assert "No step is within the SLA" in none


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("die", "refused"),
        ("garbage", "garbage"),
        ("400", "http_400"),
        ("cut", "broken_off"),
    ],
)
def test_a_server_that_goes_wrong_in_mid_run_is_counted_and_named(
    fault: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    # Two questions to begin with, the first step's six, then four of the second step's twelve.
    with stub("--fault", fault, "--fault-from", "12") as served:
        words = (*SMALL, "--clients", "2,4,8", "--out", str(out))
        assert serve(served, *words) == 1
    said = capsys.readouterr().out
    result = files.read(out)
    assert isinstance(result, LoadResult)
    first, second, *rest = result.steps
    assert (first.requests, first.errors) == (6, 0)
    assert second.requests == 4
    assert second.errors >= 4
    assert second.errors == sum(second.errors_by_kind.values())
    # Where nothing is answered at all, more clients are of no use.
    assert [step.clients for step in rest] == [8]
    # Who connects while a server is dying is not refused but broken off.
    named = rest[0] if fault == "die" else second
    assert kind in named.errors_by_kind
    assert rest[0].tpot_ms is None
    assert result.ended.startswith("nothing was answered at 8 clients")
    assert kind in said
    assert said.count(named.error_reasons[kind]) == 1
    assert "ended early" in said


def test_a_step_with_errors_is_not_said_to_be_slow(capsys: pytest.CaptureFixture[str]) -> None:
    with stub("--fault", "400", "--fault-from", "4") as served:
        assert serve(served, *SMALL, "--clients", "2", "--tpot-ms", "1000") == 1
    said = capsys.readouterr().out
    assert "No step is within the SLA of mean TPOT <= 1000 ms: too many requests failed." in said
    assert "the server answered 400: too many [2J tokens" in said


def test_it_ends_once_the_sla_is_long_broken(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with stub(*APART) as served:
        words = (*SMALL, "--clients", "1,2,3", "--out", str(out), "--stop-early")
        assert serve(served, *words, "--tpot-ms", "0.1") == 0
    found = files.read(out)
    assert isinstance(found, LoadResult)
    assert [step.clients for step in found.steps] == [1]
    assert found.ended == "the SLA was long broken at 1 client"


@pytest.mark.parametrize(
    "words",
    [
        ("--workload", "qa", "--rate", "50", "--turns", "2", "--history-tokens", "50"),
        ("--workload", "document", "--documents", "2", "--document-tokens", "60", "--template"),
        ("--workload", "stateless", "--requests", "3", "--prompt-tokens", "50"),
        (*("--workload", "agent", "--trace", "traces/agent-sample.jsonl.xz", "--sessions", "2"),
         *("--block-tokens", "1", "--think", "0", "--prompt-tokens-max", "1000")),
        (*("--workload", "chat", "--trace", "traces/chat-sample.jsonl.xz", "--sessions", "9"),
         *("--block-tokens", "1", "--think", "0.001")),
        ("--workload", "file", "--file", "FILE"),
    ],
    ids=lambda words: words[1],
)  # fmt: skip
def test_every_workload_runs(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parents[3]
    own = tmp_path / "mine.jsonl"
    own.write_text('{"prompt": "Hello"}\n{"turns": ["One", "Two"]}\n')
    place = {"FILE": str(own)}
    named = [place.get(word, str(root / word) if "/" in word else word) for word in words]
    with stub() as served:
        limits = ("--clients", "2", "--answer-tokens", "3", "--json")
        assert serve(served, *named, *limits) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workload"]["name"] == words[1]
    assert found["steps"][0]["requests"] >= 3
    assert found["steps"][0].get("errors", 0) == 0


def test_lists_of_clients() -> None:
    assert loads.clients_of("1,2,4,...,128") == (1, 2, 4, 8, 16, 32, 64, 128)
    assert loads.clients_of("1, 2, 4, \N{HORIZONTAL ELLIPSIS}, 100") == (
        1,
        2,
        4,
        8,
        16,
        32,
        64,
        100,
    )
    assert loads.clients_of("24,48,72,...,120") == (24, 48, 72, 96, 120)
    assert loads.clients_of("24,48,72") == (24, 48, 72)
    for text in ("", "0", "a", "2,1", "1,1", "1,2,...", "1,...,8", "1,2,5,...,9", "-1", "99999999"):
        with pytest.raises(SettingsError, match="--clients"):
            loads.clients_of(text)


def test_options_are_of_one_workload() -> None:
    assert loads.workload_of(parsed()) == Dialogs()
    assert loads.workload_of(parsed("--turns", "2", "--interleave", "4")) == Dialogs(2, hold=4)
    found = loads.workload_of(parsed("--workload", "document", "--template", "--skew", "0"))
    assert found == Documents(is_template=True, skew=0.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "2"), "--rate is for workload qa, not for dialog"),
        (("--workload", "agent"), "workload agent needs --trace FILE"),
        (("--workload", "file"), "workload file needs --file FILE"),
        (("--workload", "other"), "invalid choice"),
        (("--turns", "0"), "--turns"),
        (("--turns", "few"), "--turns: 'few' is not a whole number"),
        (("--clients", "4,2"), "must ascend"),
        (("--timeout", "soon"), "--timeout: 'soon' is not a number"),
        (("--tpot-ms", "0"), "tpot_ms"),
        (("--url", "ftp://a"), "is no URL"),
        (("--url", "http://127.0.0.1:9"), ABSENT),
        (("--url", "http://127.0.0.1:9", "--model", "m"), ABSENT),
    ],
)
def test_what_cannot_begin_is_one_sentence(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = () if "--url" in words else ("--url", "http://127.0.0.1:9")
    assert main(["bench", "serve", *url, *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("forebay: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_a_key_is_read_from_a_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "between us")
    with stub() as served:
        assert serve(served, *SMALL, "--clients", "1", "--json") == 0
    assert "between us" not in capsys.readouterr().out


@pytest.mark.long
def test_after_ctrl_c_what_was_measured_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with stub("--fault", "hang", "--fault-from", "6") as served:
        command = [sys.executable, "-m", "forebay.cli", "bench", "serve", "--url", served.url]
        command += [*SMALL, "--clients", "1,2,4", "--out", str(out)]
        # The second step hangs in its second request; the stub tells how far it is.
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            pool_process.wait_until(lambda: len(served.told()["sent"]) == 6, "six answers")
            running.send_signal(signal.SIGINT)
            assert running.wait(300) == 130
    result = files.read(out)
    assert isinstance(result, LoadResult)
    assert [step.clients for step in result.steps] == [1]
    assert result.ended == "it was interrupted"


def test_multi_round_questions_by_the_names_of_the_production_stack(tmp_path: Path) -> None:
    out, sheet = tmp_path / "out.json", tmp_path / "requests.csv"
    words = ["--workload", "multi-round-qa", "--num-users", "2", "--num-rounds", "3", "--qps", "20"]
    words += ["--shared-system-prompt", "60", "--user-history-prompt", "100", "--answer-len", "3"]
    with stub() as served:
        files_out = ("--time", "0.5", "--out", str(out), "--csv", str(sheet))
        assert serve(served, *words, *files_out) == 0
    result = files.read(out)
    assert isinstance(result, LoadResult)
    (step,) = result.steps
    assert step.clients == 2
    visits = MultiRoundQuestions(num_rounds=3, qps=20, time=0.5).visits(2)
    assert step.requests == sum(len(visit.times_s) for visit in visits)
    assert result.workload["shared_system_prompt"] == 60
    rows = list(csv.DictReader(sheet.read_text().splitlines()))
    assert len(rows) == step.requests
    assert list(rows[0]) == [
        *("prompt_tokens", "generation_tokens", "ttft", "generation_time", "user_id"),
        *("question_id", "launch_time", "finish_time"),
    ]
    assert {row["generation_tokens"] for row in rows} == {"3"}
    assert {row["question_id"] for row in rows} == {"1", "2", "3"}
    for row in rows:
        took = float(row["ttft"]) + float(row["generation_time"])
        ended = float(row["finish_time"]) - float(row["launch_time"])
        assert ended == pytest.approx(took, abs=0.002)
