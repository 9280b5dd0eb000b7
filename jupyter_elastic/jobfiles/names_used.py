"""Finds the modules, and the names in them, that code uses, as dotted names: `torch.distributed.init_process_group`.

Runs and imports nothing. A name that the code does not import itself begins with a dot: `.hvd.elastic`.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import re
import types
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
"""Types of objects that other code finds by a module's name."""
_TELLING = re.compile(r"LOCAL_RANK|(tcp|file)://\S*|(localhost|127\.0\.0\.1)(:\d+)?")
"""Texts in a function by which processes find their device or each other."""
_IMPORTS = (".__import__", "importlib.import_module")
"""Functions whose first argument is a module; the first returns the package that contains the module."""
_VARIABLE = re.compile(r"(LOAD|STORE)_(?:FAST|NAME|GLOBAL|DEREF|FROM_DICT_OR_GLOBALS)")
"""Instructions on variables; some Pythons have one for two."""


def dotted(value: Any) -> str:
    """Return the name by which others import this module, class or function; empty for other objects."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, NAMED) else ""


@functools.lru_cache(maxsize=256)
def in_text(text: str) -> frozenset[str]:
    """Return the names that a Python text uses; none for a text that is not Python."""
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(SyntaxError, ValueError, RecursionError):
        code = compile(text, "<text>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        return frozenset(in_code(code, {}))
    return frozenset()


def globals_read(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code and its inner functions read as globals, without attributes."""
    for step in dis.get_instructions(code):
        if step.opname in {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}:
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from globals_read(constant)


def in_code(  # noqa: C901, PLR0912  a case for each instruction
    code: types.CodeType, namespace: Mapping[str, Any], known: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """Yield the names that code and its inner functions use; `namespace`: its globals, `known`: imported names."""
    known, name, module, imported = dict(known), "", "", ""
    level: Any = 0
    names: Any = None
    for step in dis.get_instructions(code):
        word = step.argval
        if step.opname in {"LOAD_CONST", "LOAD_SMALL_INT"}:
            level, names = names, word
            if name.endswith(_IMPORTS) and isinstance(word, str) and word.replace(".", "").isidentifier():
                imported = word.partition(".")[0] if name == _IMPORTS[0] else word
                name = word
        elif step.opname == "IMPORT_NAME":
            name = "." * (level or 0) + word
            module, imported = name + "." * (names is not None), word.partition(".")[0]
        elif step.opname == "IMPORT_FROM":  # `import a.b as c` comes here too
            name = imported = module + word if module[-1] == "." else module
        elif step.opname in {"LOAD_ATTR", "LOAD_METHOD"}:
            name = name and f"{name}.{word}"
        for kind, one in zip(_VARIABLE.findall(step.opname), word if isinstance(word, tuple) else [word], strict=False):
            if kind == "LOAD":
                name = known.get(one) or dotted(namespace.get(one)) or f".{one}"
            elif imported:
                known[one] = imported
            imported = ""
        if name:
            yield name
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from in_code(constant, namespace, known)
        elif isinstance(constant, str) and _TELLING.fullmatch(constant):
            yield constant
