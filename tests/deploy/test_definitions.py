"""Unknown fields are errors in every definition; make test-definitions tries the real ones."""

from copy import deepcopy
from typing import Any

from tests.deploy import definitions

STRUCTURAL: dict[str, Any] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "apiVersion": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "properties": {
                "ports": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["number"],
                        "properties": {
                            "number": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}
                        },
                    },
                },
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "limit": {
                    "anyOf": [{"type": "integer"}, {"type": "string"}],
                    "x-kubernetes-int-or-string": True,
                },
                "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "nothing": {"type": "object"},
            },
        },
    },
}
DOCUMENT: dict[str, Any] = {
    "apiVersion": "v1",
    "metadata": {"name": "x"},
    "spec": {
        "ports": [{"number": 1}],
        "labels": {"app": "x"},
        "limit": "1",
        "anything": {"deep": {"down": 1}},
        "nothing": {},
    },
}


def wrong(**changed: Any) -> list[str]:
    document = deepcopy(DOCUMENT)
    document["spec"] |= changed
    return definitions.wrong_resource(STRUCTURAL, document)


def test_a_resource_as_it_should_be() -> None:
    assert not wrong()


def test_a_misspelt_field_is_found_at_every_depth() -> None:
    (found,) = definitions.wrong_resource(STRUCTURAL, {**DOCUMENT, "specc": {}})
    assert "specc" in found
    (found,) = wrong(port=[])
    assert "'port' was unexpected" in found
    (found,) = wrong(ports=[{"number": 1, "nummber": 2}])
    assert found.startswith("$.spec.ports[0]: ")
    (found,) = wrong(nothing={"at": "all"})
    assert found.startswith("$.spec.nothing: ")


def test_values_are_checked_as_openapi_says() -> None:
    assert wrong(ports=[{"number": 0}])
    assert wrong(ports=[{}])
    assert wrong(labels={"app": 1})
    assert wrong(limit=[])
    assert not wrong(limit=1)


def test_in_a_charts_values_an_object_without_fields_takes_anything() -> None:
    schema = {
        "type": "object",
        "properties": {"model": {"properties": {"env": {"type": "object"}}}},
    }
    assert not definitions.wrong_values(schema, {"model": {"env": {"A": "b"}}})
    (found,) = definitions.wrong_values(schema, {"model": {"envv": {}}})
    assert found.startswith("$.model: ")
