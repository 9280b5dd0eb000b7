"""A policy from a cell, asked beside the one that decides and not obeyed: where they would differ.

Runs the author's text in the author's own kernel. Knows policies and the what-if; must not know notebooks.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from msgspec import Struct

from jupyter_elastic import wire
from jupyter_elastic.errors import BadRequest
from jupyter_elastic.scheduler import plugins
from jupyter_elastic.scheduler.policies.source import from_source
from jupyter_elastic.scheduler.sim import whatif
from jupyter_elastic.testing_policies import illegal
from jupyter_elastic.types import Policy, View


class Difference(Struct, frozen=True, kw_only=True):
    """A job that the two would give different numbers of workers."""

    job: int
    name: str
    owner: str
    holds: int
    active: int
    shadow: int


class Comparison(Struct, frozen=True, kw_only=True):
    """The active policy and the shadow, asked about the same view."""

    active: str
    shadow: str
    jobs: int
    differences: tuple[Difference, ...]
    forecasts: tuple[whatif.Forecast, ...]

    def __str__(self) -> str:
        if not self.jobs:
            return f"no job waits or runs: {self.shadow} has nothing to decide"
        lines = [f"{len(self.differences)} of {self.jobs} jobs would hold other slots under {self.shadow}"]
        lines += [
            f"  job {each.job} {each.name} of {each.owner}: holds {each.holds}, {self.active} {each.active}, "
            f"{self.shadow} {each.shadow}"
            for each in self.differences
        ]
        lines += [
            f"  {found.policy}: average turnaround {_seconds(found.avg_jct_s)}, "
            f"all done in {_seconds(found.makespan_s)}"
            for found in self.forecasts
        ]
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook's plain text shows

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{each.job}</td><td>{escape(each.name)}</td><td>{escape(each.owner)}</td><td>{each.holds}</td>"
            f"<td>{each.active}</td><td>{each.shadow}</td></tr>"
            for each in self.differences
        )
        words = escape(str(self).split("\n", maxsplit=1)[0])
        head = f"<tr><th>job<th>name<th>owner<th>holds<th>{escape(self.active)}<th>{escape(self.shadow)}</tr>"
        future = "".join(
            f"<br>{escape(found.policy)}: average turnaround {_seconds(found.avg_jct_s)}, "
            f"all done in {_seconds(found.makespan_s)}"
            for found in self.forecasts
        )
        return f"<p>{words}{future}</p>" + (f"<table>{head}{rows}</table>" if rows else "")


def compare(
    ask: Callable[[wire.AnyAsk], wire.AnyAnswer], name: str, source: str, options: dict[str, Any] | None = None
) -> Comparison:
    """Ask both about the pool as it is now; BadRequest says what is wrong with the text or its plan."""
    shadow = from_source(name, source, options)
    answer = ask(wire.ReadView())
    assert isinstance(answer, wire.PoolView)
    view, active = answer.view, plugins.make_policy(answer.policy, answer.options)
    theirs, ours = _sizes(active, view), _sizes(shadow, view, name)
    found = [
        Difference(
            job=job.job,
            name=job.name,
            owner=job.owner,
            holds=job.size.slots,
            active=theirs.get(job.job, 0),
            shadow=ours.get(job.job, 0),
        )
        for job in view.jobs
        if theirs.get(job.job, 0) != ours.get(job.job, 0)
    ]
    forecasts = whatif.compare(view, {answer.policy: active, name: shadow}, first=answer.policy) if view.jobs else []
    return Comparison(
        active=answer.policy,
        shadow=name,
        jobs=len(view.jobs),
        differences=tuple(found),
        forecasts=tuple(forecasts),
    )


def _sizes(policy: Policy, view: View, name: str = "") -> dict[int, int]:
    try:
        plan = policy.plan(view)
        problem = illegal(plan, view) if name else None
    except Exception as error:
        if not name:
            raise
        raise BadRequest(f"policy {name}: plan(view) raised {type(error).__name__}: {error}") from error
    if problem:
        raise BadRequest(f"policy {name}: its plan can't be followed: {problem}")
    return {job: size.slots for job, size in plan.sizes.items()}


def _seconds(value: float | None) -> str:
    return "nobody can tell" if value is None else f"{value:,.0f} s"
