"""The phases of a job as one table, and the picture drawn from it.

Knows phases and the names of events. Must not know slots, times or who asks: whether an event may happen is `decide`'s
question, what it does to the state is `state`'s.
"""

from __future__ import annotations

from typing import NamedTuple

from jupyter_elastic.types import AnyEventData, JobEnded, Phase


class Move(NamedTuple):
    """In phase `origin`, the event `event` leads to phase `target`. No origin: the job comes into being."""

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
"""Every way a phase can change. What is not here does not happen."""

_TABLE: dict[tuple[Phase | None, str], Phase] = {(move.origin, move.event): move.target for move in MOVES}


def label(data: AnyEventData) -> str:
    """The event's name in the table: its class, for an end with the outcome."""
    if isinstance(data, JobEnded):
        return f"JobEnded {data.outcome}"
    return type(data).__name__


def legal(phase: Phase | None, data: AnyEventData) -> bool:
    """Whether the table knows this event in this phase."""
    return (phase, label(data)) in _TABLE


def after(phase: Phase, data: AnyEventData) -> Phase:
    """The phase after the event; the same one where the table has no line (a fold must not fail)."""
    return _TABLE.get((phase, label(data)), phase)


def _arrows() -> list[tuple[str, str, str]]:
    """(origin, target, events) in the table's order; events that share an arrow are joined."""
    joined: dict[tuple[str, str], list[str]] = {}
    for move in MOVES:
        joined.setdefault((move.origin or "[*]", move.target), []).append(move.event.split()[0])
    return [(origin, target, ", ".join(events)) for (origin, target), events in joined.items()]


def mermaid() -> str:
    """The table as a mermaid state diagram, as it stands in ARCHITECTURE.md."""
    lines = ["stateDiagram-v2"]
    lines += [f"    {origin} --> {target}: {events}" for origin, target, events in _arrows()]
    lines += [f"    {end} --> [*]" for end in ("completed", "failed", "cancelled")]
    return "\n".join(lines) + "\n"


def ascii_table() -> str:
    """The same for a terminal: one line an arrow."""
    arrows = _arrows()
    left = max(len(origin) for origin, _, _ in arrows)
    right = max(len(target) for _, target, _ in arrows)
    return "".join(f"{origin:>{left}} --> {target:<{right}}  {events}\n" for origin, target, events in arrows)
