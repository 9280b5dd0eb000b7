"""Writes the front end's types, `src/screens.ts`, from the structs of the screens; `--check` only compares.

    python scripts/screen_types.py [--check]

The comments are the structs' docstrings.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from msgspec import inspect as kinds

import jupyter_elastic
from jupyter_elastic.types import PolicyInfo
from jupyter_elastic.views.earlier_runs import EarlierRun
from jupyter_elastic.views.forecasts import PolicyForecast
from jupyter_elastic.views.job_page import KeptPage
from jupyter_elastic.views.pool_screen import PoolScreen, PoolStatus
from jupyter_elastic.views.timeline_screen import TimelineLook, TimelineScreen

TARGET = Path(jupyter_elastic.__file__).parent / "widgets" / "frontend" / "src" / "screens.ts"
ROOTS = (PoolScreen, PoolStatus, KeptPage, TimelineLook, TimelineScreen, EarlierRun, PolicyInfo, PolicyForecast)
"""Structs that front ends get as JSON; the structs of their fields follow by themselves."""
SAVED_WITHOUT = {
    "PoolScreen": {"problem"}, "Series": {"times", "epochs"}, "JobScreen": {"warning", "speeds", "usage"},
    "JobPage": {"failed_rank"},
}  # fmt: skip
"""Fields that are missing in notebooks saved by an earlier version."""
HEAD = """// Generated from the Python structs by scripts/screen_types.py: change those, and run it.
// An optional field is missing where it has its default, or in notebooks that an earlier version saved.
"""
PLAIN = {kinds.AnyType: "unknown", kinds.BoolType: "boolean", kinds.NoneType: "null", kinds.StrType: "string"}


def source() -> str:
    """Return the text of the file."""
    found: dict[str, str] = {}
    for root in ROOTS:
        _written(kinds.type_info(root), found)
    for name, fields in SAVED_WITHOUT.items():
        assert all(f" {field}?: " in found[name] for field in fields), f"SAVED_WITHOUT: {name} lacks one of {fields}"
    return "\n".join([HEAD, *found.values()])


def _written(info: kinds.Type, found: dict[str, str]) -> str:  # noqa: PLR0911
    """Return the TypeScript type; write the interfaces that it needs into `found`."""
    match info:
        case kinds.Metadata(type=inner):
            return _written(inner, found)
        case kinds.LiteralType(values=values):
            return " | ".join(f"'{value}'" for value in values)
        case kinds.UnionType(types=types):
            return " | ".join(_written(one, found) for one in types)
        case kinds.ListType(item_type=item) | kinds.VarTupleType(item_type=item):
            text = _written(item, found)
            return f"({text})[]" if "|" in text else f"{text}[]"
        case kinds.TupleType(item_types=items):
            return f"[{', '.join(_written(item, found) for item in items)}]"
        case kinds.DictType(key_type=key, value_type=value):
            return f"Record<{_written(key, found)}, {_written(value, found)}>"
        case kinds.StructType(cls=cls):
            name: str = cls.__name__
            if name not in found:
                found[name] = _interface(info, found)
            return name
        case kinds.IntType() | kinds.FloatType():
            return "number"
    return PLAIN[type(info)]


def _interface(info: kinds.StructType, found: dict[str, str]) -> str:
    texts = _docstrings(info.cls)
    name, omits = info.cls.__name__, info.cls.__struct_config__.omit_defaults
    lines = [*_comment(texts.get("", ""), ""), f"export interface {name} {{"]
    for field in info.fields:
        lines += _comment(texts.get(field.name, ""), "  ")
        optional = field.name in SAVED_WITHOUT.get(name, ()) or (omits and not field.required)
        lines.append(f"  {field.encode_name}{'?' * optional}: {_written(field.type, found)};")
    return "\n".join([*lines, "}", ""])


def _docstrings(cls: type[Any]) -> dict[str, str]:
    """Return the text below each attribute, and under the empty name that of the class."""
    found = {"": inspect.getdoc(cls) or ""}
    for base in (one for one in cls.__mro__ if one.__module__.startswith("jupyter_elastic.")):
        last, tree = "", ast.parse(inspect.getsource(base)).body[0]
        for node in tree.body if isinstance(tree, ast.ClassDef) else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                last = node.target.id
            elif last and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                found.setdefault(last, inspect.cleandoc(str(node.value.value)))
    return found


def _comment(text: str, indent: str) -> list[str]:
    lines = textwrap.wrap(re.sub(r"\bNone\b", "null", text), 113 - len(indent))
    if len(lines) < 2:
        return [f"{indent}/** {line} */" for line in lines]
    return [f"{indent}/**", *(f"{indent} * {line}" for line in lines), f"{indent} */"]


def main(arguments: list[str]) -> int:
    """Write the file, or compare; the exit status is 1 if it differs."""
    if arguments != ["--check"]:
        TARGET.write_text(source())
    elif TARGET.read_text() != source():
        print(f"{TARGET} is not what the structs say: run python scripts/screen_types.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
