"""What lies in deploy/ is well-formed, and its command lines are ones that Forebay takes."""

import argparse
import configparser
import json
import shlex
from pathlib import Path

import pytest
from tests.deploy import manifests
from tests.deploy.manifests import DEPLOY, SOCKET, STOP_S, USER

from forebay.cli.flags import read_settings
from forebay.cli.main import build_parser

ROOT = Path(__file__).parent.parent.parent


def parse(words: list[str]) -> argparse.Namespace:
    return build_parser().parse_args(words)


def parse_pool(words: list[str]) -> argparse.Namespace:
    found = parse(words)
    assert read_settings(found).socket == SOCKET
    return found


@pytest.fixture(scope="module")
def stages() -> dict[str, dict[str, list[str]]]:
    return manifests.images()


def service_of(name: str) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / f"{name}.service").read_text())
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    return unit["Service"]


def test_the_unit_runs_a_pool_that_may_take_its_time_to_end() -> None:
    service = service_of("forebay-pool")
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


def test_a_unit_runs_a_gateway_and_ends_no_engine() -> None:
    service = service_of("forebay-gateway")
    program, *words = shlex.split(service["ExecStart"])
    assert program.endswith("/forebay")
    assert parse(words).asked == ["/etc/forebay/gateway.toml"]
    assert service["KillMode"] == "process"
    assert service["StateDirectoryMode"] == "0700"
    assert service["User"] not in {"root", "0"}
    assert service["NoNewPrivileges"] == "yes"
    assert {"AF_INET", "AF_INET6"} <= set(service["RestrictAddressFamilies"].split())


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


def test_images_run_as_nobody_and_say_whether_they_are_well(
    stages: dict[str, dict[str, list[str]]],
) -> None:
    ports = {"pool": "7411", "serve": "8000"}
    for name, stage in stages.items():
        assert stage["USER"] == [f"{USER}:{USER}"]
        assert stage["EXPOSE"] == [ports[name]]
        (check,) = stage["HEALTHCHECK"]
        options, _, command = check.partition(" CMD ")
        assert {word.partition("=")[0] for word in options.split()} == {
            "--interval",
            "--start-period",
            "--timeout",
        }
        (copied,) = (each for each in stage["COPY"] if each.startswith("deploy/"))
        source, program = copied.split()
        assert (ROOT / source).stat().st_mode & 0o111, "it can be run"
        assert json.loads(command)[0] == Path(program).name
        # What it writes to belongs to its user: an empty volume takes that over.
        (run,) = stage["RUN"]
        assert f"install -d -m 700 -o {USER} -g {USER} /run/forebay" in run
