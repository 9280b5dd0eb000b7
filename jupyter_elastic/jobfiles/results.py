"""Packs `results/rank.N.pickle`: a worker's values of `--out` names, each in a pickle of its own where possible."""

from __future__ import annotations

import enum
import io
import types
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from jupyter_elastic.jobfiles.code_by_value import ResultPickler

_NEVER_CHANGED = (str, bytes, tuple, type, enum.Enum, types.FunctionType, types.ModuleType, types.CodeType)

_BY_IDENTITY: tuple[Any, ...] = (None, object.__hash__)


class Results(Struct, frozen=True):
    """The content of a file of results; an older file is the pickle of a dictionary."""

    pickles: list[tuple[list[str], bytes]]
    """Names, and the pickle of a dictionary of their values: values that share an object are pickled together."""
    lost: dict[str, str]
    """Reasons by the names that did not come back."""


def pack(values: Mapping[str, Any]) -> bytes:
    """Pack values into the file's content; values that can't be pickled are listed in it."""
    lost: dict[str, str] = {}
    groups: list[tuple[dict[str, Any], dict[int, Any], bytes]] = []
    for name, value in values.items():
        group = {name: value}
        try:
            data, held = _dump(group)
        except (Exception, SystemExit) as problem:
            lost[name] = f"a {type(value).__name__} can't be sent back ({problem}); {_way(name, value)}"
            continue
        for other in [other for other in groups if not held.keys().isdisjoint(other[1])]:
            groups.remove(other)
            group, held, data = {**other[0], **group}, {**other[1], **held}, b""
        groups.append((group, held, data))
    return msgspec.msgpack.encode(Results([([*group], data or _dump(group)[0]) for group, _, data in groups], lost))


def unpack(data: bytes) -> Results:
    """Decode the file's content."""
    return msgspec.msgpack.decode(data, type=Results) if data[:1] == b"\x82" else Results([([], data)], {})


def _dump(group: dict[str, Any]) -> tuple[bytes, dict[int, Any]]:
    """Return the pickle, and its mutable objects by their ids."""
    file = io.BytesIO()
    pickler = ResultPickler(file)
    pickler.dump(group)
    found = (value for _, value in pickler.memo.copy().values() if value is not group)
    held = {
        id(value): value
        for value in found
        if not isinstance(value, _NEVER_CHANGED)
        and (type(value).__hash__ in _BY_IDENTITY or hasattr(value, "__dict__"))
        and type(value).__name__ not in {"dtype", "layout", "memory_format"}
    }
    return file.getvalue(), held


def _way(name: str, value: Any) -> str:
    return f"send `{name}.state_dict()` back" if hasattr(value, "state_dict") else "give its numbers, or write a file"
