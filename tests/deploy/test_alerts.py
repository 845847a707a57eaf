"""Alert rules and the Grafana dashboard: promtool takes them, and every metric in them exists."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from forebay.metrics.catalog import PoolMetrics
from forebay.metrics.kinds import Definition, MetricKind

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
GRAFANA = ROOT / "deploy" / "grafana" / "forebay.json"
NEEDED = {
    "EngineDeclined",
    "HealthFailing",
    "HitRateCollapsed",
    "QueueStuck",
    "TierOff",
    "WriteBudgetSpent",
}
SUFFIXES = {
    MetricKind.COUNTER: ("_total",),
    MetricKind.GAUGE: ("",),
    MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count"),
}
TARGET_LABELS = {"job", "instance"}  # that Prometheus adds
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed; have it with: apt-get install prometheus",
)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [each for each in json.loads(GRAFANA.read_text())["panels"] if each["type"] != "row"]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])


def exported() -> dict[str, Definition]:
    """Every name of /metrics that the catalogue makes."""
    return {
        f"forebay_{each.name}{suffix}": each
        for each in PoolMetrics(("disk",)).definitions()
        for suffix in SUFFIXES[each.kind]
    }


def promtool(*words: str) -> str:
    ended = subprocess.run(
        ["promtool", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_every_metric_and_label_in_them_exists() -> None:
    known, seen = exported(), set()
    for text in expressions():
        for name, selector in re.findall(r"\b(forebay_\w+)(?:\{([^}]*)\})?", text):
            assert name in known, (name, text)
            labels = set(re.findall(r"(\w+) *(?:=~|!~|!=|=)", selector or ""))
            assert labels <= {*known[name].labels, *TARGET_LABELS}, (name, labels)
            seen.add(known[name].name)
        for grouped in re.findall(r"\bby \(([^)]*)\)", text):
            names = set(re.findall(r"\b(forebay_\w+)", text))
            allowed = {label for name in names for label in known[name].labels}
            assert set(grouped.split(", ")) <= {*allowed, *TARGET_LABELS, "le"}, text
    assert len(seen) > 25
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    named = {each for text in expressions() for each in re.findall(r"forebay:[\w:]+", text)}
    assert named == recorded


def test_every_alert_says_what_to_do_and_is_tested() -> None:
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    assert {f"Forebay{name}" for name in NEEDED} <= set(alerts)
    tests = yaml.safe_load((Path(__file__).parent / "alerts_test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    docs = (ROOT / "docs" / "dashboard.md").read_text()
    assert re.findall(r"^\| `(Forebay\w+)` \|", docs, re.MULTILINE) == list(alerts)
    for name, rule in alerts.items():
        assert rule["annotations"]["summary"].endswith("."), name
        assert rule["annotations"]["action"].endswith("."), name
        assert {bool(case.get("exp_alerts")) for case in cases if case["alertname"] == name} == {
            True,
            False,
        }, f"{name}: a case in which it fires, and one in which it does not"


def test_the_grafana_dashboard_is_well_formed() -> None:
    document = json.loads(GRAFANA.read_text())
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["description"], panel["title"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"
    names = {each["name"] for each in document["templating"]["list"]}
    assert names == {"datasource", "job", "instance"}


@needs_promtool
def test_promtool_takes_the_rules_and_they_fire_when_they_should() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))
    assert "SUCCESS" in promtool("test", "rules", str(Path(__file__).parent / "alerts_test.yaml"))


@needs_promtool
def test_promtool_takes_the_queries_of_the_grafana_dashboard(tmp_path: Path) -> None:
    """Every query as a rule of its own, with what Grafana puts in."""
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    filled = [
        re.sub(r"\$__(rate_interval|range)", "5m", text)
        .replace("$job", ".*")
        .replace("$instance", ".*")
        for text in queries
    ]
    assert not [text for text in filled if "$" in text]
    made = [{"record": f"query:{at}", "expr": text} for at, text in enumerate(filled)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": made}]}))
    assert f"{len(made)} rules found" in promtool("check", "rules", str(path))
