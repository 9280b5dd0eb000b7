"""Decide which events follow from a stimulus, one case each. Judges, and changes nothing.

Knows the state and the stimulus, whose `at` is the only time there is; the cases of plans, refusals and time are here,
those of commands and of reports in the modules beside. Must not know how an event changes the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from jupyter_elastic.scheduler.core import plan
from jupyter_elastic.scheduler.core.decide_commands import COMMANDS
from jupyter_elastic.scheduler.core.decide_reports import REPORTS
from jupyter_elastic.scheduler.core.rule import Rules, reserved, suitable_hosts
from jupyter_elastic.scheduler.core.state import FALLBACK, State, limit_at
from jupyter_elastic.types import (
    AnyEventData,
    AsksRefused,
    JobId,
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


def decide(state: State, stimulus: Stimulus, rules: Rules, held_back: dict[JobId, str]) -> list[AnyEventData]:
    """Return the events that follow. BadRequest or NotFound for a command that can't be granted.

    `held_back`: jobs that a rule left out of the view that a plan was made for, and the reasons.
    """
    if isinstance(stimulus, Propose):
        return _propose(state, stimulus, rules, held_back)
    return _CASES[type(stimulus)](state, stimulus)


def _propose(state: State, proposal: Propose, rules: Rules, held_back: dict[JobId, str]) -> list[AnyEventData]:
    if proposal.policy != state.policy:
        return []  # it was switched off while it was thinking
    wanted, memo = proposal.plan, None
    problem = plan.judge(state, wanted) or next(filter(None, (rule.judge(state, wanted) for rule in rules)), None)
    if problem is None:
        memo, problem = plan.memo(wanted)
    if problem is not None:
        return _rejected(state, f"illegal plan: {problem}")
    # `explain` tells the others too; of thousands that one limit holds back the journal names the first.
    first = {reason: job for job, reason in reversed(held_back.items())}
    wanted = replace(wanted, reasons={job: reason for reason, job in first.items()} | wanted.reasons)
    events: list[AnyEventData] = []
    reasons, turn = plan.reasons(state, wanted), plan.turn(state, wanted)
    if state.rejections or memo != state.memos.get(state.policy) or (reasons, turn) != (state.reasons, state.turn):
        spoken = {str(job): reason for job, reason in reasons.items()}
        events.append(PlanAccepted(policy=state.policy, memo=memo, reasons=spoken, turn=turn))
    return events + plan.difference(state, wanted, suitable_hosts(state, rules), kept=reserved(state, rules).slots)


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
    return events


_CASES: dict[type[Stimulus], Callable[[State, Any], list[AnyEventData]]] = {
    **COMMANDS,
    **REPORTS,
    PolicyFailed: _policy_failed,
    Refuse: _refuse,
    Tick: _tick,
}
