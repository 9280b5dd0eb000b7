"""Tells which rank waits for which, from the stacks of all ranks. Knows nothing of how the stacks are collected."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence

from jupyter_elastic.protocol.worker_messages import StackReport

log = logging.getLogger(__name__)

ENV = "JUPYTER_ELASTIC_WAIT_S"
WAIT_S = 30.0
"""Seconds in one collective after which a rank is reported as waiting."""
POLLS = 6
"""Number of times within `WAIT_S` that the workers' stacks are requested, while the job sends nothing else."""
FORMS_S = 10.0
"""Seconds after which a TensorFlow strategy that has not come up is reported."""
ALIKE = (
    "it takes that long, or they are in calls that do not belong together, as where their data are of unequal length "
    "(give all as many batches, or end together by training.agree)"
)


def patience_s(env: Mapping[str, str]) -> float:
    """Return the seconds a rank may wait unreported, by the job's environment or else this process's; 0: never."""
    given = env.get(ENV) or os.environ.get(ENV)
    try:
        return max(0.0, float(given)) if given else WAIT_S
    except ValueError:
        log.warning("%s=%s is no number of seconds; it is %g s", ENV, given, WAIT_S)
        return WAIT_S


def sentence(reports: Iterable[StackReport], ended: Sequence[int], patience_s: float) -> str:  # noqa: PLR0911
    """Return a sentence that says which ranks wait for which; empty when no rank waits, or none can be blamed.

    `ended` are the ranks whose cell has ended. A rank that only computes doesn't wait, however long it takes.
    """
    known = sorted(reports, key=lambda report: report.rank)
    forming = [report for report in known if report.forms and report.still_s >= min(FORMS_S, patience_s)]
    if forming:
        who = f"{_ranks([report.rank for report in forming])} {'waits' if len(forming) == 1 else 'wait'}"
        since = f"since {max(report.still_s for report in forming):.0f} s"
        return f"{who} in {forming[0].forms} {since}, which has not found the other processes"
    waiting = [report for report in known if report.held and report.still_s >= patience_s]
    if not waiting:
        return ""
    elsewhere = [report for report in known if not report.held]
    since = f"since {max(report.still_s for report in waiting):.0f} s"
    who = f"{_ranks([report.rank for report in waiting])} {'waits' if len(waiting) == 1 else 'wait'}"
    if elsewhere:
        first, *more = elsewhere
        others = "".join(f"; rank {report.rank} is at {report.where}" for report in more[:3])
        missing = _ranks([report.rank for report in elsewhere])
        place = f"which is at {first.where}" if not more else f"rank {first.rank} is at {first.where}"
        return f"{who} for {missing} {since}, {place}{others}"
    if ended:
        has = "has" if len(ended) == 1 else "have"
        return f"{who} at {waiting[0].where} {since}; {_ranks(ended)} {has} come to the end of the cell"
    if len(waiting) < len(known) or len(known) < 2:
        return ""
    where = waiting[0].where
    if len({report.where for report in waiting}) > 1:
        places = ", ".join(f"rank {report.rank} at {report.where}" for report in waiting[:4])
        return f"{who} for each other {since}: {places}"
    if below := _apart([report.stack[::-1] for report in waiting]):
        places = ", ".join(f"rank {report.rank} in {place}" for report, place in zip(waiting[:4], below, strict=False))
        return f"{who} for each other at {where} {since}: {places}"
    if any("in rendezvous" in frame for frame in waiting[0].stack):
        return f"{who} at {where} {since} for workers that are still to come"
    return f"{who} at {where} {since}, and none is missing: {ALIKE}"


def _apart(stacks: Sequence[Sequence[str]]) -> list[str]:
    """Return the frame in which each stack, outermost frame first, leaves the others; empty if they are alike."""
    depth = next((at for at, frames in enumerate(zip(*stacks, strict=False)) if len(set(frames)) > 1), None)
    if depth is None:
        return []
    return [f"{_name(stack[min(depth + 1, len(stack) - 1)])} ({_short(stack[depth])})" for stack in stacks]


def _name(frame: str) -> str:
    """Return the function of a frame such as `/lib/keras/trainer.py:371 in fit`."""
    return frame.rpartition(" in ")[2]


def _short(frame: str) -> str:
    """Return the line of a frame, with the last folder of its file."""
    return "/".join(frame.rpartition(" in ")[0].split("/")[-2:])


def _ranks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    shown = ", ".join(map(str, sorted(numbers)[:-1][:8]))
    return f"ranks {shown} and {max(numbers)}"
