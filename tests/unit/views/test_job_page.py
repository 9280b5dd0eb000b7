"""Which pages of a job are worth sending: those on which a person would see something else."""

from __future__ import annotations

import msgspec
import pytest

from jupyter_elastic.types import JobEnded, JobRequeued, SlotsReleased
from jupyter_elastic.views.job_page import JobPage, without_clock
from tests.unit.client.test_job_model import SPEC, Story


def page(story: Story, now: float) -> JobPage:
    screen = msgspec.structs.replace(story.model.screen(now), detail=story.model.hold(now))
    return JobPage(screen=screen, outputs={}, traceback="", failed_rank=None, notice="", folder="f")


def running() -> Story:
    story = Story().submitted()
    story.model.spec = msgspec.structs.replace(SPEC, session="work", hold_s=30.0)
    return story.started("h:0").running("h:0")


def over(outcome: str) -> Story:
    return running().tell(JobEnded(job=7, outcome=outcome), at=100.0)  # type: ignore[arg-type]


RETAINED = JobEnded(job=7, outcome="completed", held=1)
PINNED = JobEnded(job=7, outcome="completed", pinned=("h:0",), pinned_why="it can't leave", pinned_s=5.0)
LEFT = SlotsReleased(job=7, attempt=1, slots=("h:0",))
STORIES = {
    "a running job's size goes on": (running(), 101.0, True),
    "the sizes of a paused one too": (running().tell(JobRequeued(job=7, attempt=1, cause="preempted")), 101.0, True),
    "completed": (over("completed"), 101.0, False),
    "failed": (over("failed"), 101.0, False),
    "cancelled": (over("cancelled"), 101.0, False),
    "cancelled before it began": (Story().submitted().tell(JobEnded(job=7, outcome="cancelled")), 101.0, False),
    "its session retains slots": (running().tell(RETAINED, at=100.0), 101.0, True),
    "no longer": (running().tell(RETAINED, at=100.0), 131.0, False),
    "its session's memory stays": (running().tell(PINNED, at=100.0), 101.0, True),
    "its time is over": (running().tell(PINNED, at=100.0), 106.0, False),
    "its memory has left": (running().tell(PINNED, 100.0).tell(LEFT), 101.0, False),
}  # fmt: skip


@pytest.mark.parametrize(("story", "now", "counts"), STORIES.values(), ids=STORIES)
def test_a_second_later_a_page_is_another_one_while_something_counts(story: Story, now: float, counts: bool) -> None:
    assert (without_clock(page(story, now)) != without_clock(page(story, now + 1.0))) == counts
