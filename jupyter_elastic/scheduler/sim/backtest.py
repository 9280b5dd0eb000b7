"""How good were the predicted waits? A journal is replayed and every wait predicted as it would have been at the time.

Knows the core's fold, events and what-if; must not know files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from jupyter_elastic.errors import ElasticError
from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.sim import whatif
from jupyter_elastic.scheduler.sim.whatif import Calibration, Eta
from jupyter_elastic.types import Event, JobEnded, JobId, JobStarted, JobSubmitted, JobView, Policy


class History:
    """How long finished jobs were, in seconds of one worker: of the same name where there are three, else of all."""

    ENOUGH = 3

    def __init__(self) -> None:
        self._all: list[float] = []
        self._named: dict[str, list[float]] = {}

    def ended(self, name: str, seconds: float) -> None:
        """One more job is over."""
        self._all.append(seconds)
        self._named.setdefault(name, []).append(seconds)

    def __call__(self, job: JobView) -> float | None:
        """Mean length of jobs like this one; None as long as too few have ended."""
        for past in (self._named.get(job.name, []), self._all):
            if len(past) >= self.ENOUGH:
                return sum(past) / len(past)
        return None


@dataclass
class Backtest:
    """Predicted and real waits of a pool's past."""

    pairs: list[tuple[Eta, float]] = field(default_factory=list)
    """Each prediction, made at the submission, and the real wait in seconds."""
    calibration: Calibration = field(default_factory=Calibration)
    """What the errors so far teach the next prediction."""

    @property
    def coverage(self) -> float | None:
        """The share of real waits inside of the predicted range; 0.8 is aimed at."""
        return whatif.coverage(self.pairs)


def backtest(events: Iterable[Event], make: Callable[[str, dict[str, Any]], Policy], *, limit: int = 500) -> Backtest:
    """Predict the wait of each of the last `limit` submitted jobs at its submission, from what was known then.

    `make(name, options)` gives the policy that was active; predictions under a policy that it can't give are left out.
    """
    events = list(events)
    submitted = [event.fact.job for event in events if isinstance(event.fact, JobSubmitted)]
    wanted = set(submitted[-limit:])
    found, core = Backtest(), Core()
    history = History()
    open_: dict[JobId, tuple[Eta, float]] = {}
    policies: dict[str, Policy | None] = {}
    for event in events:
        fact = event.fact
        if isinstance(fact, JobEnded) and fact.outcome == "completed":
            for job in core.view(event.at).jobs:
                if job.job == fact.job:
                    history.ended(job.name, whatif.served(job))
        core.fold(event)
        if isinstance(fact, JobSubmitted) and fact.job in wanted:
            policy = _active(core, make, policies)
            if policy is None:
                continue
            etas = whatif.waits(core.view(event.at), policy, past=found.calibration, usual=history)
            eta = next((eta for eta in etas if eta.job == fact.job), None)
            if eta is not None:
                open_[fact.job] = (eta, event.at)
        elif isinstance(fact, JobStarted) and fact.job in open_:
            eta, since = open_.pop(fact.job)
            found.pairs.append((eta, event.at - since))
            found.calibration = found.calibration.seen(eta, event.at - since)
        elif isinstance(fact, JobEnded):
            open_.pop(fact.job, None)  # ended without a start: there is no wait to compare
    return found


def _active(
    core: Core, make: Callable[[str, dict[str, Any]], Policy], known: dict[str, Policy | None]
) -> Policy | None:
    name, options = core.state.policy, core.state.policy_options
    key = f"{name} {sorted(options.items())!r}"
    if key not in known:
        try:
            known[key] = make(name, options)
        except ElasticError:
            known[key] = None
    return known[key]
