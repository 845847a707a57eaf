"""The table of what is shared: nothing is claimed that no test runs, nothing declined silently."""

import re
from pathlib import Path

from forebay.engines.vllm.kinds import CPU, KINDS, Support
from forebay.plan.model.config import shape_of
from forebay.plan.model.known import MODELS
from forebay.plan.model.support import why_declined

HERE = Path(__file__).parent
TESTS = (HERE / "vllm" / "real", HERE.parent / "gateway" / "real")


def test_what_is_said_to_have_run_on_a_cpu_is_run_by_a_test() -> None:
    text = "".join(path.read_text() for place in TESTS for path in place.glob("test_*.py"))
    run = set(re.findall(r'has_run\("([^"]+)"\)', text))
    claimed = {name for name, kind in KINDS.items() if any(device == CPU for _, device in kind.ran)}
    assert run == claimed


def test_other_releases_are_claimed_for_what_is_run_on_them_alone() -> None:
    """`make test-versions` runs one file on each; all else is run on the release of `make vllm`."""
    makefile = (HERE.parents[1] / "Makefile").read_text()
    installed = re.findall(r"^VLLM_VERSION \?= (\S+)$", makefile, re.MULTILINE)
    others = re.findall(r"^VERSIONS \?= (.+)$", makefile, re.MULTILINE)[0].split()
    text = (HERE / "vllm" / "real" / "test_version.py").read_text()
    run = set(re.findall(r'has_run\("([^"]+)"\)', text))
    for name, kind in KINDS.items():
        claimed = {release for release, device in kind.ran if device == CPU}
        assert claimed <= {*installed, *others}, name
        assert bool(claimed & set(others)) == (name in run), name
    assert {release for release, _ in KINDS["FullAttentionSpec"].ran} >= {*installed, *others}


def test_what_is_declined_says_why_and_was_not_run() -> None:
    for name, kind in KINDS.items():
        is_shared = kind.support is Support.SHARED
        assert bool(kind.why) != is_shared, name
        assert is_shared or not kind.ran, name
        assert "|" not in kind.what + kind.why + kind.note, "it is a row of a table"


def test_the_planner_says_what_the_connector_would() -> None:
    found = {
        name: why_declined(shape_of(name, name, model.config)) for name, model in MODELS.items()
    }
    assert found["Llama-3.1-8B"] == found["DeepSeek-V3"] == found["Qwen3-Next-80B-A3B"] == ""
    assert found["Mistral-7B-v0.1"] == KINDS["local attention alone"].why
