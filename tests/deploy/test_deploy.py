"""What lies in deploy/ is well-formed, and its command lines are ones that Forebay takes."""

import argparse
import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from forebay.cli.engine import serve
from forebay.cli.flags import read_settings
from forebay.cli.main import build_parser
from forebay.quantity import parse_size

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
SOCKET = "/run/forebay/pool.sock"
STOP_S = 20  # how long a pool writes when it ends
INSTRUCTIONS = {"FROM", "COPY", "RUN", "ENTRYPOINT", "CMD"}


def parse(words: list[str]) -> argparse.Namespace:
    return build_parser().parse_args(words)


def parse_pool(words: list[str]) -> argparse.Namespace:
    found = parse(words)
    assert read_settings(found).socket == SOCKET
    return found


@pytest.fixture(scope="module")
def stages() -> dict[str, dict[str, list[str]]]:
    """Each image's instructions by name, in order."""
    found: dict[str, dict[str, list[str]]] = {}
    text = re.sub(r"\\\n", " ", (DEPLOY / "Containerfile").read_text())
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        instruction, _, rest = line.partition(" ")
        assert instruction in INSTRUCTIONS, line
        if instruction == "FROM":
            image, _, name = rest.partition(" AS ")
            assert re.fullmatch(r"[a-z/-]+:v?[\d.]+(-slim)?", image), "an image has its version"
            stage: dict[str, list[str]] = found.setdefault(name, {})
        stage.setdefault(instruction, []).append(rest)
    return found


def test_the_unit_runs_a_pool_that_may_take_its_time_to_end() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "forebay-pool.service").read_text())
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program.endswith("/forebay")
    settings = read_settings(parse_pool(words))
    assert [disk.path for disk in settings.disk] == [f"/var/lib/{service['StateDirectory']}"]
    assert f"/run/{service['RuntimeDirectory']}/pool.sock" == settings.socket
    assert int(service["TimeoutStopSec"]) > STOP_S
    assert service["StateDirectoryMode"] == "0700"
    assert service["User"] not in {"root", "0"}
    assert service["NoNewPrivileges"] == "yes"
    assert "@sandbox" in service["SystemCallFilter"].split(), "a pool confines itself by Landlock"


def test_images_are_made_of_what_is_there(stages: dict[str, dict[str, list[str]]]) -> None:
    assert set(stages) == {"pool", "serve"}
    for stage in stages.values():
        for copied in stage["COPY"]:
            *sources, _ = copied.split()
            for source in sources:
                assert (ROOT / source).exists(), source
    pool, engine = stages["pool"], stages["serve"]
    assert json.loads(pool["ENTRYPOINT"][0]) == ["forebay"]
    parse_pool(json.loads(pool["CMD"][0]))
    assert json.loads(engine["ENTRYPOINT"][0])[-3:] == ["-m", "forebay.cli", "serve"]


def containers() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Every container of the manifest with its pod."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    found = {}
    for document in documents:
        template = document["spec"]["template"]
        labels = document["spec"]["selector"]["matchLabels"]
        assert labels.items() <= template["metadata"]["labels"].items()
        for container in template["spec"]["containers"]:
            found[document["kind"]] = (container, template["spec"])
    return found


def memory_limit(container: dict[str, Any]) -> int:
    return parse_size(container["resources"]["limits"]["memory"] + "B")


def test_the_manifest_has_a_pool_on_every_node_and_an_engine_that_finds_it() -> None:
    found = containers()
    assert set(found) == {"DaemonSet", "Deployment"}
    for container, pod in found.values():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == volumes.keys()
        assert volumes["socket"]["hostPath"]["path"] == mounts["socket"] == "/run/forebay"
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not container["securityContext"]["allowPrivilegeEscalation"]
    pool, pod = found["DaemonSet"]
    (first,) = pod["initContainers"]
    assert str(pod["securityContext"]["runAsUser"]) in first["command"], "whose directories are"
    settings = read_settings(parse_pool(pool["args"]))
    assert memory_limit(pool) > settings.dram
    assert pod["terminationGracePeriodSeconds"] > STOP_S
    parse(pool["readinessProbe"]["exec"]["command"][1:])
    engine = parse(["serve", *found["Deployment"][0]["args"]])
    assert serve.settings_of(engine).socket == SOCKET
    assert engine.passed_on == ["--port=8000"]
