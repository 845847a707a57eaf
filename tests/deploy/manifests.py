"""What tests of manifests share: schemas, pods, images, and command lines that Forebay takes."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import yaml

from forebay.cli.engine import serve
from forebay.cli.flags import read_settings
from forebay.cli.main import build_parser
from forebay.quantity import parse_size
from forebay.settings import Settings

DEPLOY: Final = Path(__file__).parent.parent.parent / "deploy"
SOCKET: Final = "/run/forebay/pool.sock"
USER: Final = 65532
STOP_S: Final = 20  # how long a pool writes when it ends
GIB: Final = 1 << 30
# Kinds that Kubernetes itself does not know.
CUSTOM: Final = {
    "DynamoGraphDeployment",
    "InferencePool",
    "InferenceService",
    "LLMInferenceService",
    "PodMonitor",
    "ServingRuntime",
}
INSTRUCTIONS: Final = {
    *("FROM", "COPY", "RUN", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
}
VERSION: Final = kubernetes_validate.latest_version()

Document = dict[str, Any]


def images() -> dict[str, dict[str, list[str]]]:
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


def documents(text: str) -> list[Document]:
    return [each for each in yaml.safe_load_all(text) if each]


def validate(found: Iterable[Document]) -> None:
    """What Kubernetes knows, against its own schemas, in which unknown fields are errors."""
    for document in found:
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, VERSION, strict=True)


def validate_pod(spec: Document) -> None:
    """A pod that stands within a kind of somebody else."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    kubernetes_validate.validate(pod, VERSION, strict=True)


def of_kind(found: Iterable[Document], kind: str) -> Document:
    (document,) = (each for each in found if each["kind"] == kind)
    return document


def pod_of(document: Document) -> Document:
    """The specification of the pods of a DaemonSet or a Deployment."""
    template = document["spec"]["template"]
    labels = document["spec"]["selector"]["matchLabels"]
    assert labels.items() <= template["metadata"]["labels"].items()
    found: Document = template["spec"]
    return found


def pool_settings(words: list[str]) -> Settings:
    """Of a pool's command line, on a node with a name."""
    given = [word.replace("$(NODE_NAME)", "node-1.local") for word in words]
    settings = read_settings(build_parser().parse_args(given))
    assert settings.socket == SOCKET
    return settings


def engine_flags(words: list[str]) -> list[str]:
    """What an engine's command line passes on to vLLM; it joins the pool of its node."""
    parsed = build_parser().parse_args(["serve", *words])
    settings = serve.settings_of(parsed)
    assert (settings.socket, settings.no_pool) == (SOCKET, "serve")
    found: list[str] = parsed.passed_on
    return found


def check_confined(pod: Document) -> None:
    """No pod runs as root, gains a capability or writes to its root file system."""
    security = pod["securityContext"]
    assert (security["runAsUser"], security["runAsNonRoot"]) == (USER, True)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}


def check_pool(document: Document) -> Settings:
    """A DaemonSet of pools."""
    pod = pod_of(document)
    check_confined(pod)
    (pool,) = pod["containers"]
    settings = pool_settings(pool["args"])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in pool["volumeMounts"]}
    for name in ("socket", "chunks"):
        if name in volumes:
            assert volumes[name]["hostPath"]["path"] == mounts[name]
    assert mounts["socket"] == str(Path(SOCKET).parent)
    assert [disk.path for disk in settings.disk] == [
        path for name, path in mounts.items() if name == "chunks"
    ]
    memory = parse_size(pool["resources"]["limits"]["memory"] + "B")
    assert memory >= settings.dram + 2 * GIB
    assert pod["terminationGracePeriodSeconds"] > STOP_S
    assert pod["nodeSelector"]
    check_root_ends(pod)
    environment = {each["name"]: each.get("value") for each in pool["env"]}
    token = environment["FOREBAY_METRICS_TOKEN_FILE"] or ""
    assert token.startswith(mounts["metrics"])
    # A file of root's for one group: what the pool takes, and what others may not read.
    assert volumes["metrics"]["secret"]["defaultMode"] == 0o440
    assert pod["securityContext"]["fsGroup"] == USER
    (port,) = pool["ports"]
    assert (environment["FOREBAY_METRICS_ADDRESS"] or "").endswith(f":{port['containerPort']}")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert pool[probe]["exec"]["command"] == ["forebay-ready"]
    return settings


def check_root_ends(pod: Document) -> None:
    """The one container that runs as root gives the directories away, and ends."""
    for first in pod.get("initContainers", []):
        assert first["command"][0] == "install"
        assert f"--owner={USER}" in first["command"], "whose directories are"
        paths = {mount["mountPath"] for mount in first["volumeMounts"]}
        assert paths == {word for word in first["command"] if word.startswith("/")}
        assert first["securityContext"]["capabilities"]["drop"] == ["ALL"]


def check_engine(document: Document) -> None:
    """A Deployment of engines that join the pools of their nodes."""
    pod = pod_of(document)
    check_confined(pod)
    (engine,) = pod["containers"]
    assert engine_flags(engine["args"]) == ["--port=8000"]
    assert engine["resources"]["limits"]["nvidia.com/gpu"]
    assert [port["containerPort"] for port in engine["ports"]] == [8000]
    mounts = {mount["name"]: mount["mountPath"] for mount in engine["volumeMounts"]}
    assert mounts["socket"] == str(Path(SOCKET).parent)
    # What vLLM writes to where the root file system is read-only.
    assert {"/tmp", "/dev/shm", "/home/vllm"} <= set(mounts.values())
