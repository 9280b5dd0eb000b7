"""Make a policy from source text: a cell of some ten lines becomes a policy like any other.

The text defines `plan(view)`, which returns a Plan or a dictionary of workers by job, or a class with such a method.
The classes of `jupyter_elastic.types` that a policy needs are there without an import. Runs the text: only to be called
in the daemon's limited child process, or in the author's own kernel.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import Struct

from jupyter_elastic.scheduler.planning.plugins import typed_options
from jupyter_elastic.types import HostView, JobView, Plan, Policy, Profile, Size, Speed, View
from jupyter_elastic.types.errors import BadRequest


class NoOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a bare function: none."""


def from_source(name: str, source: str, options: dict[str, Any] | None = None) -> Policy:
    """Return the policy that the text defines; BadRequest names what is wrong with it, with the cell's line number."""
    space: dict[str, Any] = {
        "__name__": f"policy_{name}",
        **{kind.__name__: kind for kind in (HostView, JobView, Plan, Profile, Size, Speed, View)},
    }
    try:
        exec(compile(source, f"<policy {name}>", "exec", dont_inherit=True), space)  # noqa: S102 - what this module is for
    except Exception as problem:
        raise BadRequest(f"policy {name}: {_where(problem, name)}{type(problem).__name__}: {problem}") from problem
    rule = space.get("plan")
    if callable(rule):
        return _instance(name, type("Rule", (_Function,), {"rule": staticmethod(rule)}), options)
    kinds = [
        found
        for found in space.values()
        if isinstance(found, type) and found.__module__ == f"policy_{name}" and callable(getattr(found, "plan", None))
    ]
    if len(kinds) != 1:
        what = "more than one class with a method plan" if kinds else "neither a function nor a method plan(view)"
        raise BadRequest(f"policy {name}: there is {what}; define plan(view), giving back {{job.job: workers}}")
    return _instance(name, kinds[0], options)


class _Function:
    """A bare `plan(view)` as a policy."""

    rule: ClassVar[Callable[[View], Any]]

    def plan(self, view: View) -> Any:
        """Return the function's plan; a dictionary holds workers by job."""
        plan = type(self).rule(view)
        if not isinstance(plan, dict):
            return plan  # whatever it is, the asker looks at it
        sizes = {job: size if isinstance(size, Size) else Size(workers=size) for job, size in plan.items()}
        return Plan(sizes={job: size for job, size in sizes.items() if size.slots})


def _instance(name: str, kind: Any, options: dict[str, Any] | None) -> Policy:
    typed = typed_options(name, getattr(kind, "Options", NoOptions), options or {})
    defaults = {"name": name, "summary": "Given from a cell.", "work_conserving": False, "interval_s": None}
    for attribute, default in defaults.items():
        if not hasattr(kind, attribute):
            setattr(kind, attribute, default)
    try:
        made: Policy = kind(typed) if kind.__init__ is not object.__init__ else kind()
    except Exception as problem:
        raise BadRequest(f"policy {name}: {_where(problem, name)}{type(problem).__name__}: {problem}") from problem
    return made


def _where(problem: Exception, name: str) -> str:
    """Return `line 3: `, if the text's own line is known."""
    if isinstance(problem, SyntaxError):
        return f"line {problem.lineno}: " if problem.lineno else ""
    frames = traceback.extract_tb(problem.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == f"<policy {name}>"]
    return f"line {lines[-1]}: " if lines else ""
