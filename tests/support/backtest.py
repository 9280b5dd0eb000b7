"""How good were the predicted waits? A journal is replayed and every wait predicted as it would have been at the time.

Knows the core's fold, events and what-if; must not know files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.forecast import outlook
from jupyter_elastic.scheduler.forecast.job_lengths import History, served
from jupyter_elastic.scheduler.forecast.outlook import Calibration, Eta
from jupyter_elastic.types import Event, JobEnded, JobId, JobStarted, JobSubmitted, Policy
from jupyter_elastic.types.errors import ElasticError


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
        return coverage(self.pairs)


def coverage(etas: Sequence[tuple[Eta, float]]) -> float | None:
    """The share of real waits (in seconds) that lay in their predicted range."""
    if not etas:
        return None
    return sum(eta.low_s - 1e-9 <= real <= eta.high_s + 1e-9 for eta, real in etas) / len(etas)


def backtest(events: Iterable[Event], make: Callable[[str, dict[str, Any]], Policy], *, limit: int = 500) -> Backtest:
    """Predict the wait of each of the last `limit` submitted jobs at its submission, from what was known then.

    `make(name, options)` gives the policy that was active; predictions under a policy that it can't give are left out.
    """
    events = list(events)
    submitted = [event.data.job for event in events if isinstance(event.data, JobSubmitted)]
    wanted = set(submitted[-limit:])
    found, core = Backtest(), Core()
    history = History()
    open_: dict[JobId, tuple[Eta, float]] = {}
    policies: dict[str, Policy | None] = {}
    for event in events:
        data = event.data
        if isinstance(data, JobEnded) and data.outcome == "completed":
            for job in core.view(event.at).jobs:
                if job.job == data.job:
                    history.ended(job.owner, job.name, served(job))
        core.fold(event)
        if isinstance(data, JobSubmitted) and data.job in wanted:
            policy = _active(core, make, policies)
            if policy is None:
                continue
            etas = outlook.waits(core.view(event.at), policy, past=found.calibration, usual=history)
            eta = next((eta for eta in etas if eta.job == data.job), None)
            if eta is not None:
                open_[data.job] = (eta, event.at)
        elif isinstance(data, JobStarted) and data.job in open_:
            eta, since = open_.pop(data.job)
            found.pairs.append((eta, event.at - since))
            found.calibration = found.calibration.seen(eta, event.at - since)
        elif isinstance(data, JobEnded):
            open_.pop(data.job, None)  # ended without a start: there is no wait to compare
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
