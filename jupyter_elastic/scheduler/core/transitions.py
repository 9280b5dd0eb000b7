"""Define the phases of a job as one table, and draw the picture from it.

Knows phases and the names of events. Must not know slots, times or users: `decide` judges whether an event may happen,
`evolve` applies it to the state.
"""

from __future__ import annotations

from typing import NamedTuple

from jupyter_elastic.types import AnyEventData, JobEnded, Phase


class Move(NamedTuple):
    """A transition: in phase `origin` the event `event` leads to phase `target`; origin None: the job is created."""

    origin: Phase | None
    event: str
    target: Phase


def _moves(origins: tuple[Phase, ...], event: str, target: Phase) -> tuple[Move, ...]:
    return tuple(Move(origin, event, target) for origin in origins)


HOLDING: tuple[Phase, ...] = ("starting", "running", "rescaling")
_ACTIVE: tuple[Phase, ...] = (*HOLDING, "stopping")
_OPEN: tuple[Phase, ...] = ("queued", *_ACTIVE)

MOVES: tuple[Move, ...] = (
    Move(None, "JobSubmitted", "queued"),
    Move("queued", "JobStarted", "starting"),
    Move("starting", "JobRunning", "running"),
    Move("starting", "RescaleRequested", "starting"),
    Move("running", "RescaleRequested", "rescaling"),
    Move("running", "JobRunning", "running"),
    Move("rescaling", "RescaleRequested", "rescaling"),
    Move("rescaling", "JobRunning", "running"),
    *_moves(_ACTIVE, "StopRequested", "stopping"),
    *_moves(_ACTIVE, "JobRequeued", "queued"),
    *_moves(_ACTIVE, "JobEnded completed", "completed"),
    *_moves(_OPEN, "JobEnded failed", "failed"),
    *_moves(_OPEN, "JobEnded cancelled", "cancelled"),
)
"""All transitions; a phase changes in no other way."""

_TABLE: dict[tuple[Phase | None, str], Phase] = {(move.origin, move.event): move.target for move in MOVES}


def after(phase: Phase, data: AnyEventData) -> Phase:
    """Return the phase after the event; the same one if the table has no line for it (a fold must not fail)."""
    name = f"JobEnded {data.outcome}" if isinstance(data, JobEnded) else type(data).__name__
    return _TABLE.get((phase, name), phase)


def mermaid() -> str:
    """Format the table as the mermaid state diagram of docs/state-diagrams.md; events of one arrow are joined."""
    joined: dict[tuple[str, str], list[str]] = {}
    for origin, event, target in MOVES:
        joined.setdefault((origin or "[*]", target), []).append(event.split()[0])
    lines = [f"    {origin} --> {target}: {', '.join(events)}" for (origin, target), events in joined.items()]
    lines += [f"    {end} --> [*]" for end in ("completed", "failed", "cancelled")]
    return "\n".join(["stateDiagram-v2", *lines]) + "\n"
