"""Fetch the definitions of other projects that what is in deploy/ is checked against.

Usage: definitions.py [--clones DIR]   (make test-definitions). Downloads each file of a named
commit of a public repository; with --clones it is read from DIR/OWNER/NAME, a clone that has the
commit. A file that is not the one named here is refused. What is checked with, the schema of one version
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


class Source(NamedTuple):
    """Where the schema of a kind is."""

    kind: str
    version: str  # of the kind, as manifests name it; none for a chart's values
    repository: str
    commit: str
    path: str
    sha256: str

    @property
    def target(self) -> Path:
        """The schema that was fetched; another commit's has another name."""
        return PLACE / f"{self.kind}-{self.commit[:7]}.json"


_KSERVE: Final = ("kserve/kserve", "aaac4e294dae2c7b1aa1886447793f3aa1c30912")
SOURCES: Final = (
    Source(
        "PodMonitor",
        "monitoring.coreos.com/v1",
        "prometheus-operator/prometheus-operator",
        "6adcebc5076c34f4f55f8f5f7b1e528929373ac7",
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "45a93443daa687d3654f7e9631909ff7edcdf3ec09c5e60251b74aa2722aee5d",
    ),
    Source(
        "ServingRuntime",
        "serving.kserve.io/v1alpha1",
        *_KSERVE,
        "config/crd/full/serving.kserve.io_servingruntimes.yaml",
        "5a262831474e7bd23e7c4f76556d84e1a11fb3ad74a78a6d18cfc71fd8fca7a2",
    ),
    Source(
        "InferenceService",
        "serving.kserve.io/v1beta1",
        *_KSERVE,
        "config/crd/full/serving.kserve.io_inferenceservices.yaml",
        "57c3bf13f77de94678bf2ae3748056ec071ad2b9e88d6a28f44fb4710758fcff",
    ),
    Source(
        "LLMInferenceService",
        "serving.kserve.io/v1alpha2",
        *_KSERVE,
        "config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml",
        "fbd625c2a2ac7b79e17c9763b7a0c4acf3cd3eaa99ebf0fab06db008785b35f3",
    ),
    Source(
        "InferencePool",
        "inference.networking.k8s.io/v1",
        "kubernetes-sigs/gateway-api-inference-extension",
        "84436a96b9e6ce2b59ddacd3d04c31b4fbd442de",
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
        "db48c012c3f8a476be1f09f9c9eb7f4a45391d423cf540214f1f0049ca10f4a9",
    ),
    Source(
        "DynamoGraphDeployment",
        "nvidia.com/v1beta1",
        "ai-dynamo/dynamo",
        "bb3100e6114f6647494be27e1a8ba04dea410cb8",
        "deploy/operator/config/crd/bases/nvidia.com_dynamographdeployments.yaml",
        "055d7331cfbf1cca6864ee9005239de7e869dd79d69418126a52634d009c55d8",
    ),
    Source(
        VALUES,
        "",
        "vllm-project/production-stack",
        "a6c01db05f65f556235413ba8dbcfb0c01132fff",
        "helm/values.schema.json",
        "c6f98c9146c09e4ef01609afb9a1667da1694de3ca4d84247c942d875622a86a",
    ),
)


def fetched(source: Source, clones: Path | None) -> bytes:
    """The file as it is at the source."""
    if clones is not None:
        shown = [f"{source.commit}:{source.path}"]
        command = ["git", "-C", str(clones / source.repository), "show", *shown]
        text = subprocess.run(command, capture_output=True, check=True).stdout
    else:
        host = "https://raw.githubusercontent.com"
        address = f"{host}/{source.repository}/{source.commit}/{source.path}"
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
            text = answer.read()
    found = hashlib.sha256(text).hexdigest()
    if found != source.sha256:
        raise ValueError(f"{source.repository}, {source.path}: another file, {found}")
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
        print(f"definitions: {source.repository} {source.commit[:7]} {source.path}", flush=True)
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
