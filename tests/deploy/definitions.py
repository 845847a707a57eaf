"""Checks documents against definitions of other projects, in which unknown fields are errors.

Kubernetes drops a field that a definition of a custom resource does not have, without a word. Here
every object whose fields are listed takes no others, unless it says that it keeps unknown ones.
Rules in Kubernetes' own expression language (`x-kubernetes-validations`) are not evaluated.
"""

from typing import Any

from jsonschema import Draft4Validator, Draft202012Validator

_KEEPS_UNKNOWN = "x-kubernetes-preserve-unknown-fields"


def closed(schema: Any, *, is_structural: bool) -> Any:
    """A schema that refuses what it does not name.

    `is_structural`: of a custom resource, in which an object without fields has none. In a chart's
    schema such an object takes anything. `allOf` and its like stay as they are: they say more of
    fields that are named outside of them.
    """
    if isinstance(schema, bool):
        return schema
    found = dict(schema)
    if "items" in found:
        found["items"] = closed(found["items"], is_structural=is_structural)
    if isinstance(found.get("additionalProperties"), dict):
        more = found["additionalProperties"]
        found["additionalProperties"] = closed(more, is_structural=is_structural)
    fields = found.get("properties")
    if fields is not None:
        found["properties"] = {
            name: closed(each, is_structural=is_structural) for name, each in fields.items()
        }
    is_listed = fields is not None or (is_structural and found.get("type") == "object")
    if is_listed and not found.get(_KEEPS_UNKNOWN):
        found.setdefault("additionalProperties", False)
    return found


def wrong_resource(schema: Any, document: Any) -> list[str]:
    """What a definition of a custom resource finds wrong with one; of metadata it says nothing."""
    found = closed(schema, is_structural=True)
    found["properties"]["metadata"] = {"type": "object"}
    return _errors(Draft4Validator(found), document)  # whose keywords are those of OpenAPI 3.0


def wrong_values(schema: Any, values: Any) -> list[str]:
    """What a chart's schema finds wrong with values."""
    return _errors(Draft202012Validator(closed(schema, is_structural=False)), values)


def _errors(validator: Any, document: Any) -> list[str]:
    found = sorted(validator.iter_errors(document), key=lambda each: each.json_path)
    return [f"{each.json_path}: {each.message[:300]}" for each in found]
