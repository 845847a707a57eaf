"""The doctor as a whole: every check is tested, one that fails ends no other, exit status, JSON."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.observe.doctor.harness import Machine, facts_of
from tests.pool_process import SMALL, serving, short_directory

from forebay.cli.main import main
from forebay.observe.doctor.facts import Facts
from forebay.observe.doctor.finding import Check, Group, Observation, Severity, ok
from forebay.observe.doctor.run import CHECKS, FINDINGS_MAX, examine, is_bad
from forebay.settings import Settings

HERE = Path(__file__).parent


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as made:
        yield made


def test_every_check_has_a_planted_case_and_one_without() -> None:
    tests = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    for check in CHECKS:
        assert re.search(rf'finds\(\s*"{check.name}"', tests), check.name
        group, _, name = check.name.partition(".")
        in_loop = re.search(rf'"{name}"[^\n]*\):\n\s+is_fine\(f"{group}\.', tests)
        in_loop = in_loop or re.search(rf'"{check.name}"[^\n]*\):\n\s+is_fine\(name', tests)
        assert in_loop or f'is_fine("{check.name}"' in tests, check.name


def test_names_are_unique_and_groups_are_together() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    groups = [check.group for check in CHECKS]
    assert groups == sorted(groups, key=list(Group).index)


def _breaks(_facts: Facts) -> Iterator[Observation]:
    yield ok("So far all is well.")
    raise RuntimeError("nobody foresaw this")


def _never_ends(_facts: Facts) -> Iterator[Observation]:
    while True:
        yield ok("Again.")


@pytest.mark.expects_faults
def test_a_check_that_fails_is_a_finding_and_the_others_go_on(place: Path) -> None:
    broken = Check("disk.broken", Group.DRIVES, "nothing", Severity.OK, _breaks)
    endless = Check("disk.endless", Group.DRIVES, "nothing", Severity.OK, _never_ends)
    facts = facts_of(place)
    found = examine(facts, [broken, endless, *CHECKS])
    assert (found[0].check, found[0].severity) == ("disk.broken", Severity.PROBLEM)
    assert "failed unexpectedly" in found[0].sentence
    assert sum(each.check == "disk.endless" for each in found) == FINDINGS_MAX
    assert {each.check for each in found} >= {"memory.dram", "pool.socket", "sharing.vllm"}
    assert is_bad(found)


def test_a_machine_that_is_well_is_nothing_bad(tmp_path: Path) -> None:
    facts = Machine(tmp_path).facts(settings=Settings(dram=8 << 20))
    assert not is_bad(examine(facts, [check for check in CHECKS if check.group != Group.POOL]))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["doctor", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_exit_status_and_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--socket", str(place / "pool.sock"), "--dram", "8MiB", "--no-measure"]
    status, out, _ = run(capsys, *words, "--json")
    found = json.loads(out)
    bad = {"warning", "problem"} & {each["severity"] for each in found["findings"]}
    assert (status, found["clean"], found["version"]) == (int(bool(bad)), not bad, 1)
    assert set(found["findings"][0]) == {"check", "group", "severity", "sentence", "advice"}
    status, out, _ = run(capsys, *words, "--json", "--disk", f"{place}/none:64MiB")
    found = json.loads(out)
    assert (status, found["clean"]) == (1, False)
    severities = {each["check"]: each["severity"] for each in found["findings"]}
    assert severities["disk.directory"] == "problem"


def test_readable_output_is_grouped_and_says_what_to_do(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--socket", str(place / "pool.sock"), "--disk", f"{place}/a\nb:64MiB"]
    status, out, _ = run(capsys, *words, "--model", "Qwen3-8B", "--", "vllm", "serve", "-pcp", "2")
    assert status == 1
    assert [line for line in out.splitlines() if line in set(Group)] == list(Group)
    assert "-> Create it with: mkdir -m 700" in out
    assert "declined: prefill context parallelism needs decode" in " ".join(out.split())
    last = re.match(r"Checks made: (\d+), left out: (\d+)\. Found: \d+ pr", out.splitlines()[-1])
    assert last is not None
    assert int(last[1]) + int(last[2]) == len(CHECKS)
    assert "a\\nb" in out, "a path's odd letters are escaped"
    assert all(len(line) <= 100 for line in out.splitlines())


def test_a_running_pool_without_an_engine_is_nothing_bad(place: Path) -> None:
    checks = [check for check in CHECKS if check.group in {Group.POOL, Group.SHARING}]
    with serving(place, SMALL):
        found = examine(facts_of(place), checks)
    assert not is_bad(found), found
    seen = {each.check: each.severity for each in found}
    assert seen["pool.version"] is seen["pool.socket"] is Severity.OK


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "nothing"], "MODEL 'nothing' is neither"),
        (["word"], "'word' is no flag of forebay doctor"),
        (["--gpu-cache", "much"], "'much' is not a size"),
        (["--prefill-tps", "-1"], "prefill_tps must be above 0"),
        (["--vllm-args", "--model 'x"], "quotation mark"),
        (["--", "-tp", "two"], "--tensor-parallel-size of vLLM is 'two'"),
        (["--", "forebay", "stats"], "forebay serve or vllm serve"),
        (["--", "forebay", "serve", "--dram", "much"], "'much' is not a size"),
        (["--", "forebay", "serve", "--pool", "a", "--dram", "1GiB"], "--pool joins a pool"),
        (["--", "forebay", "serve", "--kv-transfer-config", "{}"], "leave it out"),
        (["--request", "nowhere.json"], "cannot be read"),
        (["--request", __file__], "is no JSON object"),
        (["--measur"], "did you mean --measure?"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_model_and_a_request_are_read_from_files(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of the hub's cache, as vLLM's flags name it; a request as a client would send it."""
    snapshot = place / "hub" / "models--org--name" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"num_key_value_heads": 2, "hidden_size": 64, "is_encoder_decoder": False}
    (snapshot / "config.json").write_text(json.dumps(config))
    (snapshot / "model.safetensors").write_bytes(b"weights")
    (place / "request.json").write_text(json.dumps({"prompt": "hello", "cache_salt": "tenant-7"}))
    monkeypatch.setenv("HF_HOME", str(place))
    words = ["--socket", str(place / "pool.sock"), "--no-measure", "--json"]
    words += ["--request", str(place / "request.json"), "--vllm-args", "serve org/name"]
    status, out, _ = run(capsys, *words)
    found = {each["check"]: each for each in json.loads(out)["findings"]}
    assert status == 1
    assert found["sharing.requests"]["severity"] == "warning"
    assert "tenant-7" not in out, "a salt is never shown"
    assert found["sharing.model"]["severity"] == found["sharing.weights"]["severity"] == "ok"
    assert found["memory.model"]["severity"] == "ok"


def test_our_own_command_is_read_as_it_would_be_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our flags are settings, unless the doctor's say other ones; the others are vLLM's."""
    words = ["--socket", str(place / "pool.sock"), "--no-measure", "--json", "--"]
    words += ["forebay", "serve", "Qwen/Qwen3-8B", "--port", "8001", "--dram", "64MiB"]
    words += ["--disk", f"{place}/none:64MiB", "-pcp", "2", "--weights-id", "mine"]
    _, out, _ = run(capsys, *words)
    found = {each["check"]: each for each in json.loads(out)["findings"]}
    assert found["sharing.model"]["severity"] == found["sharing.settings"]["severity"] == "ok"
    assert "context parallelism" in found["sharing.configuration"]["sentence"]
    assert "weights_id" in found["sharing.weights"]["sentence"]
    assert found["memory.dram"]["sentence"].startswith("64 MiB of DRAM")
    assert f"{place}/none does not exist" in found["disk.directory"]["sentence"]
    _, out, _ = run(capsys, "--dram", "32MiB", *words)
    assert "32 MiB of DRAM fit" in out
