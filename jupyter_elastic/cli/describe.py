"""Describes a policy's options by the JSON schema that the daemon sends: type and range, default, meaning.

Pure. Knows JSON schemas as msgspec writes them; must not know policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from jupyter_elastic.types import PolicyInfo
from jupyter_elastic.types.errors import NotFound


class Option(NamedTuple):
    """An option in words for people."""

    name: str
    kind: str
    """Type and range: `number, 0 to 2`, `easy, first_fit or none`."""
    default: str
    now: str
    """Current value in the pool if that is not the default, else empty."""
    meaning: str


def find(policies: Sequence[PolicyInfo], name: str) -> PolicyInfo:
    """Return the policy of this name; NotFound names the existing ones."""
    found = next((policy for policy in policies if policy.name == name), None)
    if found is None:
        names = sorted(policy.name for policy in policies)
        close = get_close_matches(name, names, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise NotFound(f"there is no policy {name!r}; there are {', '.join(names)}{hint}")
    return found


def options(policy: PolicyInfo) -> list[Option]:
    """Return the policy's options, in the order of their declaration."""
    found = []
    for name, field in _fields(policy.schema).items():
        now, default = policy.options.get(name, field.get("default")), field.get("default")
        shown = "" if now == default else _value(now)
        found.append(Option(name, _kind(field), _value(default), shown, str(field.get("description", ""))))
    return found


def _fields(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    definition = schema.get("$defs", {}).get(name, schema)
    found: dict[str, dict[str, Any]] = definition.get("properties", {})
    return found


def _kind(field: dict[str, Any]) -> str:
    if "enum" in field:
        *others, last = [_value(value) for value in field["enum"]]
        return f"{', '.join(others)} or {last}" if others else last
    if "anyOf" in field:
        return " or ".join(_kind(one) for one in field["anyOf"])
    kind = {"boolean": "true or false", "integer": "whole number", "string": "text", "null": "nothing"}.get(
        str(field.get("type")), str(field.get("type", "anything"))
    )
    least, most = field.get("minimum"), field.get("maximum")
    if least is not None and most is not None:
        return f"{kind}, {_value(least)} to {_value(most)}"
    if least is not None or most is not None:
        return f"{kind}, {'at least' if most is None else 'at most'} {_value(least if most is None else most)}"
    return kind


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | int):
        return f"{int(value):,}" if value == int(value) else f"{value:g}"
    return "nothing" if value is None else str(value)
