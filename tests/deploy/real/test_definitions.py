"""Custom resources and a chart's values against other projects' own definitions of them.

`make test-definitions` fetches these, in the versions that docs/platforms.md names.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy import definitions, manifests
from tests.deploy.manifests import DEPLOY, Document
from tests.deploy.test_kubernetes import needs_helm, rendered
from tools.definitions import SOURCES, VALUES, Source

PAGE = DEPLOY.parent / "docs" / "platforms.md"
FILES = sorted(
    path
    for folder in ("platforms", "kustomize")
    for path in (DEPLOY / folder).rglob("*.yaml")
    if path.name not in {"production-stack.yaml", "ray-serve.yaml", "kustomization.yaml"}
)

# Whose names are the user's own.
FREE = {"annotations", "labels", "limits", "matchLabels", "requests"}


def schema_of(source: Source) -> Any:
    if not source.target.exists():
        pytest.skip("the definitions were not fetched; have them with: make test-definitions")
    return json.loads(source.target.read_text())


def source_of(document: Document) -> Source:
    asked = (document["kind"], document["apiVersion"])
    (found,) = (each for each in SOURCES if (each.kind, each.version) == asked)
    return found


def custom(path: Path) -> list[Document]:
    found = manifests.documents(path.read_text())
    return [each for each in found if each["kind"] in manifests.CUSTOM]


def objects(value: Any, *at: str | int) -> Iterator[tuple[str | int, ...]]:
    """Where in a document fields have names that a definition knows."""
    if isinstance(value, dict):
        if at[-1] not in FREE:
            yield at
        for name, each in value.items():
            yield from objects(each, *at, name)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from objects(each, *at, number)


def test_every_custom_kind_has_a_definition() -> None:
    kinds = {document["kind"] for path in FILES for document in custom(path)}
    assert kinds == manifests.CUSTOM
    assert {source.kind for source in SOURCES} == {*kinds, VALUES}


@pytest.mark.parametrize(
    "path", [path for path in FILES if custom(path)], ids=lambda path: path.stem
)
def test_the_definition_takes_every_custom_resource(path: Path) -> None:
    for document in custom(path):
        assert not definitions.wrong_resource(schema_of(source_of(document)), document)


@pytest.mark.parametrize(
    "path", [path for path in FILES if custom(path)], ids=lambda path: path.stem
)
def test_a_misspelt_field_would_be_found_wherever_it_is(path: Path) -> None:
    for document in custom(path):
        schema = schema_of(source_of(document))
        for at in objects(document["spec"], "spec"):
            changed = deepcopy(document)
            target: Any = changed
            for step in at:
                target = target[step]
            target["misspelt"] = 1
            (found,) = definitions.wrong_resource(schema, changed)
            assert "misspelt" in found, at


@needs_helm
def test_the_definition_takes_what_our_chart_has() -> None:
    found = rendered("--set", "engine.enabled=true,metrics.podMonitor=true")
    monitor = manifests.of_kind(found, "PodMonitor")
    assert not definitions.wrong_resource(schema_of(source_of(monitor)), monitor)


def test_the_chart_of_the_production_stack_knows_every_value() -> None:
    (source,) = (each for each in SOURCES if each.kind == VALUES)
    schema = schema_of(source)
    # It names one of its fields; the chart hands on all, and test_platforms.py validates them.
    engines = schema["properties"]["servingEngineSpec"]["properties"]
    del engines["containerSecurityContext"]["properties"]
    values = yaml.safe_load((DEPLOY / "platforms" / "production-stack.yaml").read_text())
    assert not definitions.wrong_values(schema, values)
    values["servingEngineSpec"]["modelSpec"][0]["extraVolume"] = []
    (found,) = definitions.wrong_values(schema, values)
    assert "extraVolume" in found


def test_the_page_says_which_versions() -> None:
    lines = PAGE.read_text().splitlines()
    for source in SOURCES:
        word = "chart" if source.kind == VALUES else f"`{source.kind}`"
        told = [line for line in lines if word in line and source.release.version in line]
        assert told, source
