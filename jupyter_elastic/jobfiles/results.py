"""`results/rank.N.pickle`: the values of `--out` names as a worker leaves them, each by itself where it can be."""

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
    """A file of results; an older one is the pickle of a dictionary."""

    pickles: list[tuple[list[str], bytes]]
    """Names, and the pickle of a dictionary of their values: those that share an object go together, and share it."""
    lost: dict[str, str]
    """Names that did not come back, and why."""


def pack(values: Mapping[str, Any]) -> bytes:
    """The content of the file; what can't be pickled is named in it."""
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
    """What the file holds."""
    return msgspec.msgpack.decode(data, type=Results) if data[:1] == b"\x82" else Results([([], data)], {})


def _dump(group: dict[str, Any]) -> tuple[bytes, dict[int, Any]]:
    """The pickle, and by their ids the objects in it that whoever holds them may change."""
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
