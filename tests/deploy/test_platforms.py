"""Files for platforms that run vLLM: their pods are valid, and each joins the pool of its node."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.deploy import manifests
from tests.deploy.manifests import DEPLOY, SOCKET, USER, Document

from forebay.engines.start import plugin, vllm
from forebay.errors import SettingsError

PLATFORMS = DEPLOY / "platforms"
PAGE = DEPLOY.parent / "docs" / "platforms.md"
MOUNT = {"name": "socket", "mountPath": "/run/forebay"}


def read(name: str) -> list[Document]:
    return manifests.documents((PLATFORMS / name).read_text())


def check_transfer(config: Any) -> None:
    """A value of --kv-transfer-config that vLLM takes with Forebay's plugin, and its settings."""
    config = json.loads(config) if isinstance(config, str) else config
    assert set(config) == {"kv_connector", "kv_role", "kv_connector_extra_config"}
    assert (config["kv_connector"], config["kv_role"]) == (plugin.CONNECTOR, "kv_both")
    settings = vllm.settings_of(SimpleNamespace(**config))
    assert (settings.socket, settings.no_pool) == (SOCKET, "serve")


def check_pod(pod: Document, user: Document) -> None:
    """It has the node's socket, and the user of the node's pool."""
    manifests.validate_pod(pod)
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["socket"]["hostPath"] == {"path": "/run/forebay", "type": "DirectoryOrCreate"}
    assert MOUNT in pod["containers"][0]["volumeMounts"]
    assert (user["runAsUser"], user["runAsNonRoot"]) == (USER, True)


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_llm_d() -> None:
    found = read("llm-d.yaml")
    manifests.validate(found)
    engine = manifests.of_kind(found, "Deployment")
    pod = manifests.pod_of(engine)
    check_pod(pod, pod["securityContext"])
    assert manifests.engine_flags(pod["containers"][0]["args"]) == ["--port=8000"]
    labels = engine["spec"]["template"]["metadata"]["labels"]
    pool = manifests.of_kind(found, "InferencePool")["spec"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    assert pool["targetPorts"] == [{"number": 8000}]


def test_kserve() -> None:
    found = read("kserve.yaml")
    runtime = manifests.of_kind(found, "ServingRuntime")
    spec = {key: runtime["spec"][key] for key in ("containers", "volumes")}
    (container,) = spec["containers"]
    assert container["name"] == "kserve-container"
    check_pod(spec, container["securityContext"])
    flags = manifests.engine_flags(container["args"])
    assert flags == ["--port=8080", "--served-model-name={{.Name}}"]
    predictor = manifests.of_kind(found, "InferenceService")["spec"]["predictor"]
    assert predictor["model"]["runtime"] == runtime["metadata"]["name"]
    formats = [each["name"] for each in runtime["spec"]["supportedModelFormats"]]
    assert predictor["model"]["modelFormat"]["name"] in formats
    (rule,) = predictor["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert rule["labelSelector"]["matchLabels"].items() <= predictor["labels"].items()


def test_kserve_with_llm_d() -> None:
    (service,) = read("kserve-llm.yaml")
    pod = service["spec"]["template"]
    check_pod(pod, pod["securityContext"])
    (variable,) = pod["containers"][0]["env"]
    assert variable["name"] == "VLLM_ADDITIONAL_ARGS"
    # KServe's template hands it to a shell.
    found = re.fullmatch(r"--kv-transfer-config '([^']*)'", variable["value"])
    assert found
    check_transfer(found[1])


def test_the_production_stack() -> None:
    (values,) = read("production-stack.yaml")
    engines = values["servingEngineSpec"]
    (model,) = engines["modelSpec"]
    check_transfer(after(model["vllmConfig"]["extraArgs"], "--kv-transfer-config"))
    assert model["lmcacheConfig"] == {"enabled": False}
    container = {"name": "vllm", "image": "x", "volumeMounts": model["extraVolumeMounts"]}
    container["securityContext"] = engines["containerSecurityContext"]
    pod = {"containers": [container], "volumes": model["extraVolumes"]}
    check_pod({**pod, "securityContext": engines["securityContext"]}, engines["securityContext"])


def test_dynamo() -> None:
    (graph,) = read("dynamo.yaml")
    (worker,) = (each for each in graph["spec"]["components"] if each["type"] == "worker")
    pod = worker["podTemplate"]["spec"]
    check_pod(pod, pod["securityContext"])
    check_transfer(after(pod["containers"][0]["args"], "--kv-transfer-config"))
    for component in graph["spec"]["components"]:
        manifests.validate_pod(component["podTemplate"]["spec"])


def test_ray_serve() -> None:
    (application,) = yaml.safe_load((PLATFORMS / "ray-serve.yaml").read_text())["applications"]
    assert application["import_path"] == "ray.serve.llm:build_openai_app"
    (model,) = application["args"]["llm_configs"]
    check_transfer(model["engine_kwargs"]["kv_transfer_config"])


def test_triton() -> None:
    place = PLATFORMS / "triton" / "qwen3-8b"
    check_transfer(json.loads((place / "1" / "model.json").read_text())["kv_transfer_config"])
    assert 'backend: "vllm"' in (place / "config.pbtxt").read_text()


def test_a_setting_that_there_is_not_would_be_noticed() -> None:
    config = {"kv_connector": "ForebayConnector", "kv_role": "kv_both"}
    with pytest.raises(SettingsError, match="sockett"):
        check_transfer({**config, "kv_connector_extra_config": {"sockett": SOCKET}})


def test_the_page_names_every_file() -> None:
    page = PAGE.read_text()
    files = {str(path.relative_to(PLATFORMS)) for path in PLATFORMS.rglob("*") if path.is_file()}
    linked = set(re.findall(r"\(\.\./deploy/platforms/([^)]+)\)", page))
    assert linked == {name for name in files if Path(name).suffix != ".pbtxt"}
