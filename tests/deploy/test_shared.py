"""Manifests of several nodes that share: Kubernetes' schemas take them, and so does Forebay."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from forebay.cli.engine import serve
from forebay.cli.flags import read_settings
from forebay.cli.main import build_parser

SHARED = Path(__file__).parent.parent.parent / "deploy" / "shared"
POOLS = {"pool-s3.yaml": "s3", "pool-volume.yaml": "file"}
ENGINES = {
    "llm-d.yaml": "Deployment",
    "kserve.yaml": "InferenceService",
    "production-stack.yaml": "Deployment",
}
# Kinds that Kubernetes does not know; of what is in them, pods are checked.
CUSTOM = {"InferenceService", "InferencePool"}
VERSION = kubernetes_validate.latest_version()
SOCKET = "/run/forebay/pool.sock"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((SHARED / name).read_text()))


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    """The specification of the pods that a document makes."""
    if document["kind"] != "InferenceService":
        found: dict[str, Any] = document["spec"]["template"]["spec"]
        return found
    more = {"minReplicas", "maxReplicas", "labels"}  # KServe's own
    return {key: value for key, value in document["spec"]["predictor"].items() if key not in more}


def labels_of(document: dict[str, Any]) -> dict[str, str]:
    spec = document["spec"]
    is_custom = document["kind"] == "InferenceService"
    found: dict[str, str] = (
        spec["predictor"]["labels"] if is_custom else spec["template"]["metadata"]["labels"]
    )
    return found


def of_kind(name: str, kind: str) -> dict[str, Any]:
    (found,) = (each for each in documents(name) if each["kind"] == kind)
    return found


def test_every_file_is_known_here() -> None:
    assert {path.name for path in SHARED.iterdir()} == {*POOLS, *ENGINES}


@pytest.mark.parametrize("name", [*POOLS, *ENGINES])
def test_the_schemas_of_kubernetes_take_it(name: str) -> None:
    assert (SHARED / name).read_text().startswith("# NOT RUN")
    for document in documents(name):
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, VERSION, strict=True)
        if document["kind"] == "InferenceService":
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
            kubernetes_validate.validate({**pod, "spec": pod_of(document)}, VERSION, strict=True)


def test_the_schemas_would_notice() -> None:
    document = of_kind("llm-d.yaml", "Deployment")
    pod_of(document)["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize("name", POOLS)
def test_pools_share_a_store_under_the_names_of_their_nodes(name: str) -> None:
    pod = pod_of(of_kind(name, "DaemonSet"))
    (container,) = pod["containers"]
    variables = {each["name"]: each["valueFrom"]["fieldRef"] for each in container["env"]}
    assert variables == {"NODE_NAME": {"fieldPath": "spec.nodeName"}}
    words = [word.replace("$(NODE_NAME)", "node-1.local") for word in container["args"]]
    settings = read_settings(build_parser().parse_args(words))
    (remote,) = settings.remote
    assert (remote.scheme, remote.host) == (POOLS[name], "node-1.local")
    assert settings.socket == SOCKET
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts.keys() == {each["name"] for each in pod["volumes"]}
    if remote.scheme == "file":
        assert remote.path == mounts["shared"]
    else:
        assert container["envFrom"] == [{"secretRef": {"name": "forebay-s3"}}]


@pytest.mark.parametrize(("name", "kind"), ENGINES.items())
def test_two_replicas_on_two_nodes_join_the_pools_of_their_nodes(name: str, kind: str) -> None:
    document = of_kind(name, kind)
    spec = document["spec"]
    assert spec.get("replicas") == 2 or spec["predictor"]["minReplicas"] == 2
    pod = pod_of(document)
    rules = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [rule["topologyKey"] for rule in rules] == ["kubernetes.io/hostname"]
    labels = labels_of(document)
    assert rules[0]["labelSelector"]["matchLabels"].items() <= labels.items()
    (container,) = pod["containers"]
    parsed = build_parser().parse_args(["serve", *container["args"]])
    assert serve.settings_of(parsed).socket == SOCKET
    port = container["ports"][0]["containerPort"]
    assert parsed.passed_on == [f"--port={port}"]
    assert container["readinessProbe"]["httpGet"]["port"] == port
    for other in documents(name):
        selector = other["spec"].get("selector", {})
        chosen = selector.get("matchLabels", selector)
        assert chosen.items() <= labels.items(), "whoever selects pods selects these"
