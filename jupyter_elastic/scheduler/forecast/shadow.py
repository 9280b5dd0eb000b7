"""Compare the active policy with another one, a shadow, that has no effect: their differences on one view. Pure."""

from __future__ import annotations

from html import escape

from msgspec import Struct

from jupyter_elastic.scheduler.core.plan import illegal
from jupyter_elastic.scheduler.forecast import whatif
from jupyter_elastic.types import JobView, Plan, Policy, View
from jupyter_elastic.types.errors import BadRequest


class Difference(Struct, frozen=True, kw_only=True):
    """A job that the two policies would give different numbers of workers."""

    job: int
    name: str
    owner: str
    holds: int
    active: int
    shadow: int


class Comparison(Struct, frozen=True, kw_only=True):
    """Plans of the active policy and the shadow for the same view."""

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
        lines += [f"  {_future(found)}" for found in self.forecasts]
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
        future = "".join(f"<br>{escape(_future(found))}" for found in self.forecasts)
        return f"<p>{words}{future}</p>" + (f'<table border="1" class="dataframe">{head}{rows}</table>' if rows else "")


def compare(view: View, active: tuple[str, Policy], shadow: tuple[str, Policy]) -> Comparison:
    """Ask both policies about the same view; BadRequest names what is wrong with the shadow's plan."""
    sizes = {job: size.slots for job, size in active[1].plan(view).sizes.items()}
    differences = [
        Difference(
            job=job.job,
            name=job.name,
            owner=job.owner,
            holds=job.size.slots,
            active=sizes.get(job.job, 0),
            shadow=slots,
        )
        for job, slots in asked_sizes(checked_plan(shadow[1], view, shadow[0]), view)
        if sizes.get(job.job, 0) != slots
    ]
    return Comparison(
        active=active[0],
        shadow=shadow[0],
        jobs=len(view.jobs),
        differences=tuple(differences),
        forecasts=tuple(whatif.compare(view, dict([active, shadow]), first=active[0]) if view.jobs else ()),
    )


def asked_sizes(plan: Plan, view: View) -> list[tuple[JobView, int]]:
    """Return the view's jobs, each with the slots that the plan gives it."""
    return [(job, plan.sizes[job.job].slots if job.job in plan.sizes else 0) for job in view.jobs]


def checked_plan(policy: Policy, view: View, name: str) -> Plan:
    """Return a plan that could be followed; BadRequest names what is wrong with it."""
    try:
        plan = policy.plan(view)
        problem = illegal(plan, view)
    except BaseException as error:  # it may be anybody's, and is asked in the thread of all views
        raise BadRequest(f"policy {name}: plan(view) raised {type(error).__name__}: {error}") from error
    if problem:
        raise BadRequest(f"policy {name}: its plan can't be followed: {problem}")
    return plan


def _future(found: whatif.Forecast) -> str:
    mean, last = found.avg_jct_s, found.makespan_s
    average = "unknown" if mean is None else f"{mean:,.0f} s"
    return f"{found.policy}: average completion time {average}, " + (
        "when all finish is unknown" if last is None else f"all finish in {last:,.0f} s"
    )
