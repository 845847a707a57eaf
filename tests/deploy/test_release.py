"""The release workflow: valid, its actions pinned, its jobs allowed what they do and no more."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
RELEASE = ROOT / ".github" / "workflows" / "release.yaml"
HANG_S = 120
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
MAY = {
    "test": {"contents": "read"},
    "build": {"contents": "read"},
    "attest": {"attestations": "write", "id-token": "write"},
    "publish": {"id-token": "write"},
}


@pytest.fixture(scope="module")
def jobs() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(RELEASE.read_text())["jobs"]
    return found


def check_schema(path: Path) -> subprocess.CompletedProcess[str]:
    schema = "vendor.github-workflows"
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_the_schema_of_workflows_takes_them(tmp_path: Path) -> None:
    assert RELEASE in WORKFLOWS
    for path in WORKFLOWS:
        ended = check_schema(path)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    wrong = tmp_path / "release.yaml"
    wrong.write_text(RELEASE.read_text().replace("steps:", "stepz:"))
    assert check_schema(wrong).returncode == 1


def test_every_action_is_pinned_to_a_commit() -> None:
    for path in WORKFLOWS:
        uses = [line for line in path.read_text().splitlines() if "uses:" in line]
        assert uses
        for line in uses:
            assert PINNED.search(line), line


def test_no_job_may_do_more_than_it_does(jobs: dict[str, dict[str, Any]]) -> None:
    assert yaml.safe_load(RELEASE.read_text())["permissions"] == {}
    assert {name: job["permissions"] for name, job in jobs.items()} == MAY
    for name, job in jobs.items():
        assert job["timeout-minutes"], name
        for step in job["steps"]:
            assert "secrets." not in str(step), "trusted publishing needs none"
            # What a name of GitHub's holds is data, not part of a script.
            assert "${{" not in step.get("run", ""), step
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"] == {"persist-credentials": False}


def test_what_is_published_was_tested_built_and_attested(jobs: dict[str, dict[str, Any]]) -> None:
    needs = {name: job.get("needs") for name, job in jobs.items()}
    assert needs == {"test": None, "build": "test", "attest": "build", "publish": "attest"}
    triggers = yaml.safe_load(RELEASE.read_text())[True]  # `on`, as YAML 1.1 reads it
    assert triggers == {"push": {"tags": ["v*"]}}
    assert jobs["publish"]["environment"] == "pypi"
    scripts = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert any("$GITHUB_REF_NAME" in script for script in scripts), "the tag is the version"
    # Files that are built here are built in the one way there is.
    for script in (script for job in jobs.values() for script in map(run_of, job["steps"])):
        for target in re.findall(r"\bmake (\w+)", script):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
        for command in re.findall(r"^\.ci/\w+$", script, re.MULTILINE):
            assert (ROOT / command).exists()
    assert any("make wheel" in script for script in scripts)


def test_what_builds_a_release_has_its_version() -> None:
    """CI's jobs install nothing by themselves; `make wheel` installs what is named in one line."""
    assert "pip install" not in RELEASE.read_text()
    line = re.search(r"^WHEEL_TOOLS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    tools = line[1].split()
    assert all(re.fullmatch(r"[a-z-]+==[\d.]+", each) for each in tools)
    assert {each.partition("==")[0] for each in tools} == {"build", "check-wheel-contents", "twine"}


def run_of(step: dict[str, Any]) -> str:
    found: str = step.get("run", "")
    return found
