"""Decide which events follow from a stimulus, one case each. Judges, and changes nothing.

Knows the state and the stimulus, whose `at` is the only time there is; the cases of plans, refusals and time are here,
those of commands and of reports in the modules beside. Must not know how an event changes the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jupyter_elastic.scheduler.core import drains, holds, plan
from jupyter_elastic.scheduler.core.decide_commands import COMMANDS
from jupyter_elastic.scheduler.core.decide_reports import REPORTS
from jupyter_elastic.scheduler.core.reservation import reserved
from jupyter_elastic.scheduler.core.state import FALLBACK, State, limit_at
from jupyter_elastic.types import (
    AnyEventData,
    AsksRefused,
    PlanAccepted,
    PlanRejected,
    PolicyFailed,
    PolicyUsed,
    Propose,
    Refuse,
    Stimulus,
    StopRequested,
    Tick,
)

MAX_REJECTIONS = 3
"""Maximum number of plans refused in a row before the fallback policy takes over."""


def decide(state: State, stimulus: Stimulus) -> list[AnyEventData]:
    """Return the events that follow. BadRequest or NotFound for a command that can't be granted."""
    return _CASES[type(stimulus)](state, stimulus)


def _propose(state: State, proposal: Propose) -> list[AnyEventData]:
    if proposal.policy != state.policy:
        return []  # it was switched off while it was thinking
    problem = plan.judge(state, proposal.plan)
    memo: Any = None
    if problem is None:
        memo, problem = plan.memo(proposal.plan)
    if problem is not None:
        return _rejected(state, f"illegal plan: {problem}")
    events: list[AnyEventData] = []
    reasons, turn = plan.reasons(state, proposal.plan), plan.turn(state, proposal.plan)
    if state.rejections or memo != state.memos.get(state.policy) or (reasons, turn) != (state.reasons, state.turn):
        spoken = {str(job): reason for job, reason in reasons.items()}
        events.append(PlanAccepted(policy=state.policy, memo=memo, reasons=spoken, turn=turn))
    return events + plan.difference(state, proposal.plan, kept=reserved(state).slots + holds.held(state))


def _policy_failed(state: State, failure: PolicyFailed) -> list[AnyEventData]:
    return _rejected(state, failure.reason) if failure.policy == state.policy else []


def _rejected(state: State, reason: str) -> list[AnyEventData]:
    events: list[AnyEventData] = [PlanRejected(policy=state.policy, reason=plan.plain(reason))]
    if state.rejections + 1 >= MAX_REJECTIONS and (state.policy != FALLBACK or state.policy_source):
        why = f"{state.policy} failed {state.rejections + 1} times in a row: {reason}"
        events.append(PolicyUsed(name=FALLBACK, previous=state.policy, reason=plan.plain(why)))
    return events


def _refuse(_state: State, refusal: Refuse) -> list[AnyEventData]:
    return [
        AsksRefused(
            user=refusal.by,
            ask=refusal.ask,
            code=refusal.code,
            count=refusal.count,
            message=plan.plain(refusal.message),
            about=refusal.about,
        )
    ]


def _tick(state: State, tick: Tick) -> list[AnyEventData]:
    events: list[AnyEventData] = []
    for job in state.active_jobs():
        limit = job.spec.max_time_s
        due = limit_at(job)
        if limit is not None and due is not None and tick.at >= due:
            reason = f"it ran for its time limit of {limit:g} s; give it more with --max-time"
            if job.spec.interactive:
                reason = (
                    f"it ran for {limit:g} s, which is all that it had as an interactive job; run it without "
                    "--interactive if it takes longer"
                )
            events.append(StopRequested(job=job.job, attempt=job.attempt, how="time limit", reason=reason))
        elif tick.at >= drains.leaves_at(state, job):
            events.append(drains.leave(state, job))
    return events


_CASES: dict[type[Stimulus], Callable[[State, Any], list[AnyEventData]]] = {
    **COMMANDS,
    **REPORTS,
    Propose: _propose,
    PolicyFailed: _policy_failed,
    Refuse: _refuse,
    Tick: _tick,
}
