"""The phase table and its picture."""

from __future__ import annotations

from jupyter_elastic.scheduler.core.transitions import MOVES, after, mermaid
from jupyter_elastic.types import ENDED, JobEnded, JobStarted


def test_no_phase_and_fact_lead_to_two_places() -> None:
    pairs = [(move.origin, move.event) for move in MOVES]
    assert len(pairs) == len(set(pairs))


def test_nothing_leaves_an_ended_phase_and_every_other_is_left() -> None:
    origins = {move.origin for move in MOVES}
    assert not origins & ENDED
    assert {move.target for move in MOVES} - ENDED <= origins


def test_each_ended_phase_can_be_reached_from_each_open_one_but_completed_needs_a_start() -> None:
    ways = {(move.origin, move.target) for move in MOVES}
    for phase in ("starting", "running", "rescaling", "stopping"):
        assert {(phase, end) for end in ENDED} <= ways
    assert ("queued", "completed") not in ways


def test_an_unknown_fact_leaves_the_phase() -> None:
    started = JobStarted(job=1, attempt=1, generation=1, slots=("a:0",))
    assert after("queued", started) == "starting"
    assert after("running", started) == "running"
    assert after("queued", JobEnded(job=1, outcome="cancelled")) == "cancelled"


def test_the_picture_shows_every_move() -> None:
    drawn = mermaid()
    assert drawn.startswith("stateDiagram-v2\n    [*] --> queued: JobSubmitted\n")
    for move in MOVES:
        arrow = f"    {move.origin or '[*]'} --> {move.target}: "
        line = next(line for line in drawn.splitlines() if line.startswith(arrow))
        assert move.event.split()[0] in line
