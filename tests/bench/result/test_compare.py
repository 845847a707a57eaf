"""`forebay bench compare`: what two results say together, held to the reference table."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.bench.result.reference import OFF, ON, document

from forebay.bench.result import files
from forebay.cli.main import main
from forebay.plan.measured import Sla, operating_point


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    for name, side in (("gpu", OFF), ("tier", ON)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document(side)))
    return [str(tmp_path / "gpu.json"), str(tmp_path / "tier.json")]


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["bench", "compare", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_reference_table(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(capsys, *pair)
    assert (found["on"]["clients"], found["off"]["clients"]) == (64, 16)
    assert found["clients_ratio"] == 4.0
    assert (found["on"]["first_violation"], found["off"]["first_violation"]) == (128, 32)
    assert (found["on"]["req_s"], found["off"]["req_s"]) == (12.27, 3.47)
    assert (found["on"]["ttft_ms"], found["off"]["ttft_ms"]) == (129, 246)
    gains = [round(row["gain_percent"]) for row in found["rows"]]
    assert gains == [8, 54, 77, 116, 159, 206]


def test_the_reference_table_for_people(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "compare", *pair]) == 0
    out = capsys.readouterr().out
    assert (
        "4.0 \N{MULTIPLICATION SIGN} clients within the SLA (64 against 16; first violation" in out
    )
    assert "first violation at 128 and 32" in out
    assert "requests per second at the operating points (12.27 against 3.47)" in out
    for gain in ("+8 %", "+54 %", "+77 %", "+116 %", "+159 %", "+206 %"):
        assert f" {gain} " in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_planner_finds_the_same_operating_points(
    pair: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    both = tmp_path / "ab.json"
    both.write_text(json.dumps({"off": document(OFF), "on": document(ON)}))
    ab = files.read_pair(both)
    for bounds, sla in (([], Sla()), (["--tpot-ms", "70", "--ttft-ms", "100"], Sla(70, 100))):
        found = compared(capsys, str(both), *bounds)
        assert found["on"]["clients"] == operating_point("on", ab.on.steps, sla).clients
        if "--ttft-ms" not in bounds:
            assert found["off"]["clients"] == operating_point("off", ab.off.steps, sla).clients
    assert main(["plan", "cost", str(both), "--clients", "640"]) == 0


def test_sides_with_other_steps_and_without_an_operating_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off, on = document(OFF), document(ON)
    off["steps"] = [step for step in off["steps"] if step["clients"] > 16]
    on["steps"] = [
        {"clients": 24, "req_s": 0, "tpot_ms": None, "errors": 9, "requests": 0},
        *on["steps"][::-1],
    ]
    paths = [tmp_path / "off.json", tmp_path / "on.json"]
    for path, one in zip(paths, (off, on), strict=True):
        path.write_text(json.dumps(one))
    found = compared(capsys, *map(str, paths))
    assert found["off"]["clients"] is None
    assert (found["on"]["clients"], found["on"]["first_violation"]) == (16, 24)
    assert found["clients_ratio"] is None
    assert [row["gain_percent"] for row in found["rows"]][:4] == [None] * 4
    assert main(["bench", "compare", *map(str, paths)]) == 0
    assert "(16 against no step;" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nonsense", "is not JSON"),
        ("[]", "is no benchmark result"),
        ('{"steps": []}', "is no benchmark result"),
        ('{"steps": [{"clients": 1, "req_s": 1}]}', "tpot_ms"),
        ('{"steps": [{"clients": 0, "req_s": 1, "tpot_ms": {"mean": 1}}]}', "clients"),
        ('{"steps": [{"clients": 1, "req_s": -1, "tpot_ms": {"mean": 1}}]}', "req_s"),
        ('{"steps": [{"clients": 1, "req_s": 1e999, "tpot_ms": {"mean": 1}}]}', "req_s"),
        (json.dumps({"steps": document(ON)["steps"] * 2}), "two steps"),
        (json.dumps({"off": document(ON), "on": document(ON)}), "name it by itself"),
    ],
)
def test_a_file_that_cannot_be_used(
    content: str, said: str, pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    assert main(["bench", "compare", pair[0], str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("forebay: ")
    assert said in err
    assert err.count("\n") == 1


def test_one_result_is_no_pair(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compare", pair[0]]) == 2
    assert "name another" in capsys.readouterr().err
    assert main(["bench", "compare", pair[0], "/none.json"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["bench", "compare", *pair, "--tpot-ms", "-1"]) == 2
    assert "tpot_ms" in capsys.readouterr().err
