"""Fetch the definitions of other projects that what is in deploy/ is checked against.

Usage: definitions.py [--clones DIR]   (make test-definitions). Downloads each file of a release
of a public repository; with --clones it is read from DIR/OWNER/NAME, a clone that has the commit. A
file that is not the one named here is refused. What is checked with, the schema of one version
without its descriptions, is written to build/definitions. Nothing of it is part of this project.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

PLACE: Final = Path(__file__).parent.parent / "build" / "definitions"
VALUES: Final = "values"  # what stands for the kind of a chart's values
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # seconds instead of a minute
_TIMEOUT_S: Final = 120.0


class Release(NamedTuple):
    """What is fetched from; a tag could move, a commit cannot."""

    repository: str
    version: str
    commit: str


class Source(NamedTuple):
    """Where the schema of a kind is."""

    kind: str
    version: str  # of the kind, as manifests name it; none for a chart's values
    release: Release
    path: str
    sha256: str

    @property
    def target(self) -> Path:
        """The schema that was fetched; another release's has another name."""
        return PLACE / f"{self.kind}-{self.release.version}.json"


_PROMETHEUS: Final = Release(
    "prometheus-operator/prometheus-operator", "0.93.0", "f8fafd475f3d132e239432ae6172de60a6cb6516"
)
_KSERVE: Final = Release("kserve/kserve", "0.20.0", "1fb781055dd1567164358233e1125142ca6ef1fe")
_INFERENCE: Final = Release(
    "kubernetes-sigs/gateway-api-inference-extension",
    "1.6.0",
    "992e5c292afb248801ce8d9234eb5b9d28eea231",
)
_DYNAMO: Final = Release("ai-dynamo/dynamo", "1.4.1", "2112d6ba74da72e2715ae69f4b76458b7691380d")
_STACK: Final = Release(
    "vllm-project/production-stack", "0.1.12", "66b60661aa3052810859a417559e9e830772a091"
)
SOURCES: Final = (
    Source(
        "PodMonitor",
        "monitoring.coreos.com/v1",
        _PROMETHEUS,
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "45a93443daa687d3654f7e9631909ff7edcdf3ec09c5e60251b74aa2722aee5d",
    ),
    Source(
        "ServingRuntime",
        "serving.kserve.io/v1alpha1",
        _KSERVE,
        "config/crd/full/serving.kserve.io_servingruntimes.yaml",
        "380a3e1e1444cef9b8b88819596692728868205a2147dc66423be469a4a7bbb1",
    ),
    Source(
        "InferenceService",
        "serving.kserve.io/v1beta1",
        _KSERVE,
        "config/crd/full/serving.kserve.io_inferenceservices.yaml",
        "57c3bf13f77de94678bf2ae3748056ec071ad2b9e88d6a28f44fb4710758fcff",
    ),
    Source(
        "LLMInferenceService",
        "serving.kserve.io/v1alpha2",
        _KSERVE,
        "config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml",
        "4377745d253c5c6407ccd46aecdfadcea160ba77a0976dd2d112f0ca9a1ac53f",
    ),
    Source(
        "InferencePool",
        "inference.networking.k8s.io/v1",
        _INFERENCE,
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
        "55e0dbf39c50c4bbdd60106493a4573df4bb44479f9ce46762f1af718883e5cd",
    ),
    Source(
        "DynamoGraphDeployment",
        "nvidia.com/v1beta1",
        _DYNAMO,
        "deploy/operator/config/crd/bases/nvidia.com_dynamographdeployments.yaml",
        "cb078c7bff9b3b751875411b466ee7369be7635ea8e8580c7a5123a1a48c38af",
    ),
    Source(
        VALUES,
        "",
        _STACK,
        "helm/values.schema.json",
        "3dac4e2d1bd64a018e2b1a4fc10990d0d2be7d6599f5764019d2d32424f5a9ae",
    ),
)


def fetched(source: Source, clones: Path | None) -> bytes:
    """The file as it is at the source."""
    release = source.release
    if clones is not None:
        place, shown = clones / release.repository, f"{release.commit}:{source.path}"
        command = ["git", "-C", str(place), "show", shown]
        text = subprocess.run(command, capture_output=True, check=True).stdout
    else:
        host = "https://raw.githubusercontent.com"
        address = f"{host}/{release.repository}/{release.commit}/{source.path}"
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
            text = answer.read()
    found = hashlib.sha256(text).hexdigest()
    if found != source.sha256:
        raise ValueError(f"{release.repository}, {source.path}: another file, {found}")
    return text


def schema_of(source: Source, text: bytes) -> Any:
    """What a file says of the version in question."""
    if source.kind == VALUES:
        return json.loads(text)
    definition = yaml.load(text, _LOADER)["spec"]
    group, _, version = source.version.partition("/")
    assert (definition["group"], definition["names"]["kind"]) == (group, source.kind)
    (found,) = (each for each in definition["versions"] if each["name"] == version)
    assert found["served"], source.version
    return found["schema"]["openAPIV3Schema"]


def without_descriptions(schema: Any) -> Any:
    """All that is checked; a property may well be called description."""
    if isinstance(schema, list):
        return [without_descriptions(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_descriptions(each)
        for key, each in schema.items()
        if key != "description" or not isinstance(each, str)
    }


def missing() -> Iterator[Source]:
    """What was not fetched yet."""
    yield from (source for source in SOURCES if not source.target.exists())


def main() -> int:
    """Fetch what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clones", type=Path, metavar="DIR", help="read from clones in there")
    clones = parser.parse_args().clones
    PLACE.mkdir(parents=True, exist_ok=True)
    for source in missing():
        release = source.release
        print(f"definitions: {release.repository} {release.version}, {source.path}", flush=True)
        try:
            text = fetched(source, clones)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"definitions: not to be had: {error}", file=sys.stderr)
            return 2
        schema = without_descriptions(schema_of(source, text))
        source.target.write_text(json.dumps(schema, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
