"""A policy asked beside the one that decides and not obeyed: where they differ, once or for as long as somebody looks.

Runs beside whoever asks, a cell's text in its author's own kernel; never in the daemon. Knows policies and the what-if;
must not know notebooks.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from html import escape
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from jupyter_elastic.errors import BadRequest, NotFound
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler import plugins
from jupyter_elastic.scheduler.core.plan import illegal
from jupyter_elastic.scheduler.forecast import whatif
from jupyter_elastic.scheduler.policies.source import from_source
from jupyter_elastic.types import Plan, Policy, View
from jupyter_elastic.widgets.pool_screen import ShadowDifference, ShadowRow

Ask: TypeAlias = Callable[[wire.AnyAsk], Awaitable[wire.AnyAnswer]]
"""Asks the daemon."""
EVERY_S, IDLE_S = 2.0, 30.0
"""Shadows are asked again so soon after something happened, and so soon without: some policies go by time."""
LAZY = 30
"""Asking takes at most one part in so many of the time."""
MAX_SHADOWS = 5
MAX_DIFFERENCES = 20


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


class Shadows:
    """Policies that are asked beside the active one, again and again, each with its own memo."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        self._seq = -1
        self._next = 0.0

    @property
    def rows(self) -> list[ShadowRow]:
        """What is to be shown of them."""
        return [each.row for each in self._asked.values()]

    def begin(self, name: str, options: dict[str, Any] | None = None, source: str = "") -> None:
        """Ask a policy from now on, `source` is a cell's text; BadRequest, or NotFound for one that there isn't."""
        if name not in self._asked and len(self._asked) >= MAX_SHADOWS:
            raise BadRequest(f"{MAX_SHADOWS} shadows are asked already: end one of {', '.join(self._asked)} first")
        options = options or {}
        policy = from_source(name, source, options) if source else plugins.make_policy(name, options)
        self._asked[name] = _Asked(policy, _unasked(name, options, cell=bool(source)))
        self._next = 0.0

    def end(self, name: str) -> None:
        """Ask it no longer; NotFound when it is not asked."""
        if self._asked.pop(name, None) is None:
            raise NotFound(f"{name} is no shadow; those asked are {', '.join(self._asked) or 'none'}")

    def due(self, seq: int) -> bool:
        """Whether to ask them again, where the newest event is `seq`."""
        now = time.monotonic()
        return bool(self._asked) and now >= self._next and (seq != self._seq or now >= self._next + IDLE_S)

    async def renew(self, ask: Ask, seq: int = 0) -> None:
        """Ask each of them about the pool as it is now."""
        if not self._asked:
            return
        began, self._seq, self._next = time.monotonic(), seq, math.inf
        try:
            answer = await ask(wire.ReadView())
            assert isinstance(answer, wire.PoolView)
            await asyncio.to_thread(self._look, answer.view)
        finally:
            self._next = time.monotonic() + max(EVERY_S, LAZY * (time.monotonic() - began))

    def _look(self, view: View) -> None:
        for asked in list(self._asked.values()):
            asked.look(view)


class _Asked:
    """One of them."""

    def __init__(self, policy: Policy, row: ShadowRow) -> None:
        self.policy, self.row = policy, row
        self._memo: Any = None

    def look(self, view: View) -> None:
        """Ask it once more."""
        try:
            plan = _plan(self.policy, msgspec.structs.replace(view, memo=self._memo), self.row.policy)
        except BadRequest as problem:
            self.row = msgspec.structs.replace(self.row, problem=str(problem), differences=[], total_differences=0)
            return
        self._memo = plan.memo
        sizes = {job: size.slots for job, size in plan.sizes.items()}
        found = [
            ShadowDifference(
                job=job.job, name=job.name, owner=job.owner, holds=job.size.slots, shadow=sizes.get(job.job, 0)
            )
            for job in view.jobs
            if job.phase != "stopping" and job.size.slots != sizes.get(job.job, 0)
        ]
        since = self.row.differs_since
        self.row = msgspec.structs.replace(
            self.row,
            asked=self.row.asked + 1,
            differed=self.row.differed + bool(found),
            differs_since=(time.time() if since is None else since) if found else None,
            jobs=len(view.jobs),
            differences=found[:MAX_DIFFERENCES],
            total_differences=len(found),
            problem="",
        )


def _unasked(name: str, options: dict[str, Any], *, cell: bool) -> ShadowRow:
    return ShadowRow(
        policy=name,
        options=options,
        cell=cell,
        since=time.time(),
        asked=0,
        differed=0,
        differs_since=None,
        jobs=0,
        differences=[],
        total_differences=0,
        problem="",
    )


def _sizes(policy: Policy, view: View, name: str = "") -> dict[int, int]:
    plan = _plan(policy, view, name) if name else policy.plan(view)
    return {job: size.slots for job, size in plan.sizes.items()}


def _plan(policy: Policy, view: View, name: str) -> Plan:
    """A plan that could be followed; BadRequest says what is wrong with it."""
    try:
        plan = policy.plan(view)
        problem = illegal(plan, view)
    except Exception as error:
        raise BadRequest(f"policy {name}: plan(view) raised {type(error).__name__}: {error}") from error
    if problem:
        raise BadRequest(f"policy {name}: its plan can't be followed: {problem}")
    return plan


def _seconds(value: float | None) -> str:
    return "nobody can tell" if value is None else f"{value:,.0f} s"
