"""The compose file: its schema takes it, its files are there, and its commands are Forebay's."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy import manifests
from tests.deploy.manifests import DEPLOY, GIB, SOCKET, STOP_S, USER

COMPOSE = DEPLOY / "compose.yaml"
HANG_S = 120


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def check_schema(path: Path) -> subprocess.CompletedProcess[str]:
    """With the schema of the Compose Specification that the tool brings along."""
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", path],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_the_compose_specification_takes_it(tmp_path: Path) -> None:
    ended = check_schema(COMPOSE)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text().replace("mem_limit", "memory_limit"))
    assert "memory_limit" in check_schema(wrong).stdout


def test_pool_and_engine_share_a_socket(services: dict[str, dict[str, Any]]) -> None:
    pool, engine = services["pool"], services["vllm"]
    settings = manifests.pool_settings(pool["command"])
    assert manifests.engine_flags(engine["command"]) == ["--port=8000"]
    for service in (pool, engine):
        assert f"socket:{Path(SOCKET).parent}" in service["volumes"]
        assert service["user"] == f"{USER}:{USER}"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["tmpfs"] == ["/tmp"]
    (disk,) = settings.disk
    assert f"chunks:{disk.path}" in pool["volumes"]
    limit = re.fullmatch(r"(\d+)g", pool["mem_limit"])
    assert limit
    assert int(limit[1]) * GIB >= settings.dram + 2 * GIB
    grace = re.fullmatch(r"(\d+)s", pool["stop_grace_period"])
    assert grace
    assert int(grace[1]) > STOP_S
    assert engine["ulimits"] == {"memlock": -1}
    assert pool["healthcheck"]["test"] == ["CMD", "forebay-ready"]
    assert engine["healthcheck"]["test"] == ["CMD", "forebay-ready", "8000", "/health"]


def test_nothing_is_open_to_other_hosts(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert "no-new-privileges:true" in service["security_opt"]
        assert service["cap_drop"] == ["ALL"]
        assert re.search(r":v?\d+\.\d+\.\d+(\.dev\d+)?$", service["image"]), (
            "an image has its version"
        )


def test_prometheus_and_grafana_find_what_they_are_given(
    services: dict[str, dict[str, Any]],
) -> None:
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
    # In one network namespace with the pool, which answers at loopback alone.
    assert services["prometheus"]["network_mode"] == "service:pool"
    assert "127.0.0.1:9090:9090" in services["pool"]["ports"]
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    targets = {
        job["job_name"]: job["static_configs"][0]["targets"] for job in scraped["scrape_configs"]
    }
    assert targets == {"forebay": ["127.0.0.1:7411"], "vllm": ["vllm:8000"]}
    assert [*scraped["rule_files"]] == ["alerts.yaml"]
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "forebay.yaml").read_text())[
        "datasources"
    ]
    assert (source["type"], source["url"]) == ("prometheus", "http://pool:9090")
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "forebay.yaml").read_text())[
        "providers"
    ]
    mounted = [each.split(":") for each in services["grafana"]["volumes"]]
    (dashboard,) = (each for each in mounted if each[0].endswith(".json"))
    assert Path(dashboard[1]).parent == Path(provider["options"]["path"])
    assert json.loads((DEPLOY / dashboard[0]).read_text())["title"]


@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed; have it with: apt-get install prometheus",
)
def test_promtool_takes_its_configuration() -> None:
    ended = subprocess.run(
        ["promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yaml")],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
