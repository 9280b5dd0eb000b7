"""Analyses a cell's text without running it: whether it is Python, and the names that it reads and sets.

Knows syntax trees and symbol tables; runs nothing, and must not know values, files or the daemon.

A name is *needed* when the cell can read it before it has certainly set it itself. Bodies of functions are read when
the function is first named after its definition, so that `def f(): return g()` above `def g()` does not ask the
notebook for an older `g`.
"""

# ruff: noqa: N802, N815 - methods are named after the syntax they are for

from __future__ import annotations

import ast
import functools
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from jupyter_elastic.jobfiles.framework_variables import set_before_loading, settings
from jupyter_elastic.types.errors import PackagingError

GIVEN = frozenset({"rank", "world_size", "local_rank", "device"})
"""Names that the worker defines; the notebook's values of these names are not sent."""
_HARMLESS = frozenset({"matplotlib", "config", "load_ext", "reload_ext", "autoreload", "precision", "pprint", "xmode"})
"""Line magics that only set up the notebook's own display or editing; they are left out in a worker."""
_SETTING = re.compile(r"([A-Za-z_]\w*)\s*[=\s]\s*([^{}$]+)")
"""An `%env` line without `{name}` or `$name` of the notebook."""
_COMMAND_NAMES = re.compile(r"\{[^{}]*\}|\$\w+")
_WORD = re.compile(r"[^\W\d]\w*")
_SHELL = "__import__('jupyter_elastic.worker.shell', fromlist=['_'])"


@dataclass(frozen=True)
class AnalysedCell:
    """A parsed cell."""

    source: str
    needs: tuple[str, ...]
    """Names to look up in the notebook, in the order of their first reading."""
    sets: frozenset[str]
    """Names that the cell sets somewhere at top level."""
    open_ended: bool
    """True if the cell may set names that its text does not show (`from x import *`, `exec`)."""
    notes: tuple[str, ...] = ()
    variables: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    """Environment variables to set before the frameworks are loaded (`framework_variables.set_before_loading`)."""


def read(source: str, *, filename: str, first_line: int) -> AnalysedCell:
    """Parse a cell into plain Python and its names; PackagingError (with the cell's own line) if it is not Python."""
    try:
        return _read(source, first_line)
    except (SyntaxError, ValueError, RecursionError) as problem:
        raise _not_python(problem, filename, first_line) from None


@functools.lru_cache(maxsize=64)  # a cell is run again and again, and 200 lines take 25 ms
def _read(source: str, first_line: int) -> AnalysedCell:
    plain, tree, notes, in_commands = _plain(source, first_line)
    tree = tree or ast.parse(plain)
    compile(tree, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if not any(not isinstance(node, ast.Pass) and not _is_text(node) for node in tree.body):
        raise PackagingError("the cell is empty: write the code to run under the %%distribute line")
    flow = _Flow()
    flow.block(tree.body)
    flow.finish()
    sets = flow.sets.union(*(part.names for part in ast.walk(tree) if isinstance(part, ast.Global)))
    open_ended = "*" in sets or re.search(r"\b(exec|globals)\s*\(", plain) is not None
    needs = tuple(name for name in dict.fromkeys([*flow.needs, *in_commands]) if name not in GIVEN)
    if any(name == "CUDA_VISIBLE_DEVICES" for statement in tree.body for name, _, _ in settings(statement)):
        notes += ("the cell sets CUDA_VISIBLE_DEVICES: leave that out, each worker sees the GPUs that it has leased",)
    return AnalysedCell(plain, needs, frozenset(sets), open_ended, notes, set_before_loading(tree))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _not_python(problem: Exception, filename: str, first_line: int) -> PackagingError:
    if not isinstance(problem, SyntaxError):
        return PackagingError(f"the cell is not Python: {problem}")
    line = (problem.lineno or 1) + first_line - 1
    text = (problem.text or "").rstrip("\n")
    caret = f"\n    {' ' * max(0, (problem.offset or 1) - 1)}^" if text else ""
    shown = f"\n    {text}{caret}" if text else ""
    return PackagingError(f"syntax error in {filename}, line {line}: {problem.msg}{shown}\nNothing was queued.")


# --- IPython's own lines ----------------------------------------------------------------------------------------------


def _plain(source: str, first_line: int) -> tuple[str, ast.Module | None, tuple[str, ...], list[str]]:
    """Turn `!command` lines into Python and leave out display magics; other magics raise PackagingError.

    Returns the source, its tree if there is one already, notes for a person, and the names that commands read (`!ls
    {folder} $HOME`).
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        from IPython.core.inputtransformer2 import TransformerManager

        try:
            source = TransformerManager().transform_cell(source)
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return source, None, (), []
    notes: list[str] = []
    in_commands: list[str] = []
    cuts: list[tuple[ast.expr, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_shell(node.func.value):
            cuts.extend(_shell_call(node, node.func, first_line, notes))
            if node.func.attr in {"system", "getoutput"}:
                in_commands += [
                    name for part in _COMMAND_NAMES.findall(ast.unparse(node)) for name in _WORD.findall(part)
                ]
    left = [node for node in ast.walk(tree) if _is_shell(node)]
    if len(left) > len(cuts):
        line = left[0].lineno + first_line - 1
        raise PackagingError(f"line {line} calls get_ipython(): workers are plain Python and have no IPython shell")
    if not cuts:
        return source, tree, (), []
    lines = source.splitlines(keepends=True)
    for node, text in sorted(cuts, key=lambda cut: (cut[0].lineno, cut[0].col_offset), reverse=True):
        _replace(lines, node, text)
    return "".join(lines), None, tuple(notes), in_commands


def _is_shell(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "get_ipython"


def _shell_call(
    node: ast.Call, func: ast.Attribute, first_line: int, notes: list[str]
) -> Iterator[tuple[ast.expr, str]]:
    """Yield the text that replaces a call on the IPython shell; PackagingError when there is none."""
    line = node.lineno + first_line - 1
    texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if func.attr in {"system", "getoutput"}:
        yield func, f"{_SHELL}.{func.attr}"
        return
    if func.attr not in {"run_line_magic", "run_cell_magic"}:
        return
    name = texts[0] if texts else func.attr
    if func.attr == "run_line_magic" and name in _HARMLESS:
        what = (
            "in a cell of the notebook's own it holds for sessions too"
            if "autoreload" in texts
            else "it only concerns the notebook"
        )
        notes.append(f"line {line}: %{name} is left out, {what}")
        yield node, "None"
        return
    if name in {"env", "set_env"} and (setting := _SETTING.fullmatch(texts[-1].strip())) and len(texts) == 2:
        yield node, f"__import__('os').environ.__setitem__({setting[1]!r}, {setting[2]!r})"
        return
    sign = "%%" if func.attr == "run_cell_magic" else "%"
    advice = {
        "pip": "install in a cell of its own before this one",
        "conda": "install in a cell of its own before this one",
        "env": "use --env NAME=VALUE",
        "set_env": "use --env NAME=VALUE",
        "time": "take time.perf_counter() before and after",
        "timeit": "use the timeit module",
        "distribute": "one %%distribute to a cell, on its first line",
    }.get(name, "write it as Python, or run it in a cell of its own")
    raise PackagingError(
        f"line {line}: `{sign}{name}` is an IPython magic and workers are plain Python: {advice}. Nothing was queued."
    )


def _replace(lines: list[str], node: ast.expr, text: str) -> None:
    """Replace the text of `node`; ast counts columns in UTF-8 bytes."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset or 0 :].decode()
    lines[first] = head + text + ("\n" * (last - first)) + tail
    for index in range(first + 1, last + 1):
        lines[index] = ""


# --- names ------------------------------------------------------------------------------------------------------------


def _only_in_comprehensions(tree: ast.AST) -> set[str]:
    """Return names that nothing but a comprehension's `for` sets."""
    parts = list(ast.walk(tree))
    targets = [name for part in parts if isinstance(part, ast.comprehension) for name in ast.walk(part.target)]
    inside = {id(name) for name in targets}
    names = [part for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)]
    return {name.id for name in names if id(name) in inside} - {name.id for name in names if id(name) not in inside}


def _below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _below(child)


def _globals_of(table: symtable.SymbolTable) -> list[str]:
    return sorted(s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced())


def _table(node: ast.AST) -> symtable.SymbolTable:
    return symtable.symtable(ast.unparse(node), "<part>", "exec")


def _expression_reads(node: ast.AST) -> list[str]:
    """Return names that an expression reads from the module, including its comprehensions and lambdas."""
    parts = list(ast.walk(node))
    if not any(isinstance(part, _INNER_SCOPES) for part in parts):
        set_here = [part.target for part in parts if isinstance(part, ast.NamedExpr)]
        return sorted({part.id for part in parts if isinstance(part, ast.Name) and part not in set_here})
    top = _table(node)
    inner = _only_in_comprehensions(node)
    names = [
        s.get_name() for s in top.get_symbols() if s.is_referenced() and not (s.is_assigned() and s.get_name() in inner)
    ]
    for table in _below(top):
        names += _globals_of(table)
    return sorted(set(names))


def _body_reads(node: ast.AST) -> list[str]:
    """Return names that the body of a function or class reads from the module."""
    return sorted({name for table in _below(_table(node)) for name in _globals_of(table)})


@dataclass
class _Flow:
    """A walk through statements in the order they run, which records the names that are certainly set."""

    bound: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    """Names that are set on some path."""
    needs: dict[str, None] = field(default_factory=dict)
    later: dict[str, list[str]] = field(default_factory=dict)
    """Names that a function of the cell will read once it is used."""

    def finish(self) -> None:
        while self.later:  # reading one may read others
            self.read(self.later.pop(next(iter(self.later))))

    def read(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self.later:
                self.read(self.later.pop(name))
            if name not in self.bound:
                self.needs.setdefault(name)

    def look(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.read(_expression_reads(node))
                self.sets.update(part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr))

    def bind(self, target: ast.expr) -> None:
        """Record an assignment's target as set; its object is read (`a.b = 1` reads `a`)."""
        if isinstance(target, ast.Name):
            self.set(target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self.bind(element)
        elif isinstance(target, ast.Starred):
            self.bind(target.value)
        else:
            self.look(target)

    def set(self, name: str) -> None:
        self.bound.add(name)
        self.sets.add(name)
        self.later.pop(name, None)

    def block(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            getattr(self, f"on_{type(node).__name__}", self.on_other)(node)
            for part in ast.walk(node) if not hasattr(node, "body") else ():
                if isinstance(part, ast.NamedExpr):
                    self.set(part.target.id)

    def branches(self, *bodies: Iterable[ast.stmt]) -> None:
        """Record the branches; only names that all of them set are certainly set afterwards."""
        before, ends = set(self.bound), []
        for body in bodies:
            self.bound = set(before)
            self.block(body)
            ends.append(self.bound)
        self.bound = set.intersection(*ends)

    def on_other(self, node: ast.stmt) -> None:
        if not isinstance(node, (ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal)):
            self.look(*[child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)])

    def on_Assign(self, node: ast.Assign) -> None:
        self.look(node.value)
        for target in node.targets:
            self.bind(target)

    def on_AugAssign(self, node: ast.AugAssign) -> None:
        self.look(node.target, node.value)
        self.bind(node.target)

    def on_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.look(node.annotation, node.value)
        if node.value is not None:
            self.bind(node.target)

    def on_Delete(self, node: ast.Delete) -> None:
        self.look(*node.targets)
        self.bound -= {target.id for target in node.targets if isinstance(target, ast.Name)}

    def on_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self.set(alias.asname or alias.name.split(".")[0])

    on_ImportFrom = on_Import

    def on_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        a = node.args
        every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *[x for x in (a.vararg, a.kwarg) if x is not None]]
        self.look(*node.decorator_list, *a.defaults, *a.kw_defaults, *[x.annotation for x in every], node.returns)
        self.set(node.name)
        bare = type(node)(**{**dict(ast.iter_fields(node)), "decorator_list": []})
        self.later[node.name] = _body_reads(ast.fix_missing_locations(bare))

    on_AsyncFunctionDef = on_FunctionDef

    def on_ClassDef(self, node: ast.ClassDef) -> None:
        self.look(*node.decorator_list, *node.bases, *[keyword.value for keyword in node.keywords])
        bare = ast.ClassDef(node.name, [], [], node.body, [])
        (table,) = _table(ast.fix_missing_locations(bare)).get_children()
        self.read(_globals_of(table))
        self.set(node.name)
        self.later[node.name] = sorted({name for child in _below(table) for name in _globals_of(child)})

    def on_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.look(node.iter)
        before = set(self.bound)
        self.bind(node.target)
        self.block(node.body)
        self.bound = before
        self.branches(node.orelse, [])

    on_AsyncFor = on_For

    def on_While(self, node: ast.While) -> None:
        self.look(node.test)
        self.branches(node.body, [])
        self.branches(node.orelse, [])

    def on_If(self, node: ast.If) -> None:
        self.look(node.test)
        self.branches(node.body, node.orelse)

    def on_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.look(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars)
        self.block(node.body)

    on_AsyncWith = on_With

    def on_Try(self, node: ast.Try) -> None:
        for handler in node.handlers:
            self.look(handler.type)
        self.branches([*node.body, *node.orelse], *[_handler_body(handler) for handler in node.handlers])
        self.block(node.finalbody)

    on_TryStar = on_Try

    def on_Match(self, node: ast.Match) -> None:
        self.look(node.subject)
        before = set(self.bound)
        for case in node.cases:
            self.bound = set(before)
            for part in ast.walk(case.pattern):
                if isinstance(part, (ast.MatchValue, ast.MatchClass)):
                    self.look(part.value if isinstance(part, ast.MatchValue) else part.cls)
                name = getattr(part, "rest", None) or getattr(part, "name", None)
                if isinstance(name, str):
                    self.set(name)
            self.look(case.guard)
            self.block(case.body)
        self.bound = before


_INNER_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _handler_body(handler: ast.ExceptHandler) -> list[ast.stmt]:
    if handler.name is None:
        return handler.body
    caught: ast.stmt = ast.Assign([ast.Name(handler.name, ast.Store())], ast.Constant(None))
    return [ast.fix_missing_locations(ast.Module([caught], [])).body[0], *handler.body]
