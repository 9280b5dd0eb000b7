"""Runs a cell's text in its namespace, top-level `await` and the value of its last line included.

A session's cells share one event loop: what one has made with it (a queue, a task, a client's connections) works in the
next, and stands still between. Knows the payload and the display; must not know ranks or the driver.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
from collections.abc import Coroutine
from typing import Any, NoReturn

from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.worker import display

VALUE = "__elastic_value__"
"""The name under which the value of the cell's last line is kept until it is shown."""


class Cell:
    """One cell's text, parsed; SyntaxError if it is no Python. Tracebacks know its lines from now on."""

    def __init__(self, payload: Payload) -> None:
        self.name = payload.filename
        """File name of the cell's lines."""
        source = "\n" * (payload.first_line - 1) + payload.source
        lines = source.splitlines(keepends=True)
        linecache.cache[self.name] = (len(source), None, lines, self.name)
        for name, (_, text) in payload.sources.items():
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        self._tree = ast.parse(source, self.name)
        self.sets = frozenset(
            node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        """Names that the cell sets somewhere."""
        if not payload.argv:
            _keep_value(self._tree, source)

    def run(self, namespace: dict[str, Any], loop: Loop) -> None:
        """Run the cell, and show the value of its last line."""
        # Not with this module's own `from __future__ import annotations`.
        code = compile(self._tree, self.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        try:
            if code.co_flags & inspect.CO_COROUTINE:
                loop.run(eval(code, namespace))  # noqa: S307 - the owner's own cell
            else:
                exec(code, namespace)  # noqa: S102 - the owner's own cell
            display.show_value(namespace.pop(VALUE, None))
        finally:
            display.end_of_cell()


class Loop:
    """The event loop of cells that await: one for each, or one for all of them (`stays`)."""

    def __init__(self, *, stays: bool) -> None:
        self._stays = stays
        self._runner: asyncio.Runner | None = None

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a cell to its end; an interrupted cell does not go on in the next."""
        if not self._stays:
            asyncio.run(work)
            return
        self._runner = self._runner or asyncio.Runner()
        loop = self._runner.get_loop()
        task = loop.create_task(work)
        try:
            loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                loop.run_until_complete(asyncio.wait([task]))
            raise


def no_answer(prompt: object = "") -> NoReturn:
    """Replace `input` in a worker."""
    del prompt
    raise EOFError(
        "a worker has nobody to ask: call input() in a cell of the notebook's own, and the variable that it sets "
        "travels with this one"
    )


def no_debugger(*_: object, **__: object) -> NoReturn:
    """Replace `breakpoint` and `pdb.set_trace` in a worker."""
    raise EOFError(
        "a worker has nobody to debug with: print what you want to see, or run these lines in a cell of the notebook's "
        "own, without %%distribute"
    )


def _keep_value(tree: ast.Module, source: str) -> None:
    """Keep the value of the cell's last line, unless a semicolon ends it."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return
    rest = source.encode().splitlines()[(last.end_lineno or 1) - 1 :]
    if rest[0][last.end_col_offset or 0 :].lstrip().startswith(b";"):
        return
    name = ast.copy_location(ast.Name(VALUE, ast.Store()), last)
    tree.body[-1] = ast.copy_location(ast.Assign([name], last.value), last)


def is_fine(ending: SystemExit) -> bool:
    """Return True if `sys.exit(...)` meant success."""
    return ending.code is None or (isinstance(ending.code, int) and ending.code == 0)
