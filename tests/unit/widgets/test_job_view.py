"""What a job's view costs, when it is drawn, and what it shows of the time before it stood."""

from __future__ import annotations

import asyncio
import json
import queue
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.types import Event, HoldEnded, JobInfo, JobSpec, Retention
from jupyter_elastic.views.followed_job import FollowedJob
from jupyter_elastic.views.follower import PoolFollower
from jupyter_elastic.views.job_page import job_page, kept_page
from jupyter_elastic.views.updater import POLL_S, PUSH_S, TICK_S, draw_hold, draw_job
from jupyter_elastic.widgets.job_widget import JobWidget
from tests.support.virtual_time import run


class Followed(FollowedJob):
    """A job of two slots, and when it was drawn with which lines."""

    def __init__(self, folder: Path, phase: str = "queued", slots: tuple[str, ...] = ()) -> None:
        spec = JobSpec(name="n", folder=str(folder), python="/p", min_slots=2, max_slots=2)
        super().__init__(
            JobInfo(job=1, owner="ann", spec=spec, phase=phase, slots=slots, submitted_at=0.0),  # type: ignore[arg-type]
            "cpu",
        )
        self.drawn: list[tuple[float, dict[str, int]]] = []

    def sink(self, output: Any) -> None:
        lines = {rank: len(lines) for rank, lines in (output or {}).items()}
        self.drawn.append((asyncio.get_running_loop().time(), lines))

    def print(self, rank: int, *lines: str) -> None:
        (self.files.path / f"rank.{rank}").mkdir(exist_ok=True)
        with (self.files.path / f"rank.{rank}" / "stdout").open("a") as file:
            file.writelines(line + "\n" for line in lines)

    def end(self) -> None:
        self.model.phase, self.up_to_date = "completed", True
        self.changed(at_once=True)


def test_views_share_their_class_and_their_front_end() -> None:
    first, second = (JobWidget(job=1, on_background=print, page="{}") for _ in range(2))
    assert type(first) is type(second) is JobWidget
    assert first.layout is second.layout
    assert "export" in first.layout.script
    assert "je-job" in first.layout.style
    state = {name: value for name, value in second.get_state().items() if isinstance(value, str)}
    assert len(json.dumps(state)) < 2_000


def test_a_tool_without_widgets_is_shown_no_object_of_ours() -> None:
    data, _ = JobWidget(job=1, on_background=print, page="{}")._repr_mimebundle_()  # type: ignore[misc]
    assert data["text/plain"] == ""
    assert "application/vnd.jupyter.widget-view+json" in data


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ({"type": "explode", "id": 7}, "there is no 'explode'; the page and the kernel are of different versions"),
        ({"type": "resize", "least": "many", "id": 7}, "not understood: Expected `int`, got `str` - at `$.least`"),
        ("cancel", "not understood: Expected `object`, got `str`"),
    ],
)
def test_a_command_that_can_not_be_carried_out_is_answered_with_why(
    command: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    widget = JobWidget(job=1, on_background=print, page="{}")
    answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    monkeypatch.setattr(widget, "send", answers.put)
    widget._handle_custom_msg(command, [])
    assert answers.get(timeout=60) == {"id": 7 if isinstance(command, dict) else None, "error": reason}


def test_a_click_lets_the_cell_that_waits_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widget = JobWidget(job=1, on_background=(tmp_path / "background").touch, page="{}")
    answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    monkeypatch.setattr(widget, "send", answers.put)
    widget._handle_custom_msg({"type": "background", "id": 3}, [])
    assert answers.get(timeout=60) == {"id": 3, "value": None}
    assert (tmp_path / "background").exists()


def test_what_was_printed_before_the_view_stood_is_shown_at_once(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.print(0, "early")

    async def play() -> None:
        drawing = asyncio.create_task(draw_job(job, job.sink))
        await asyncio.sleep(0)
        assert job.drawn == [(0.0, {"0": 1})]
        job.end()
        await drawing

    run(play())


def test_a_session_that_keeps_slots_counts_down_until_somebody_waits(tmp_path: Path) -> None:
    job = Followed(tmp_path, "completed")
    job.model.retention = Retention(count=2, until=time.time() + 500)

    async def play() -> None:
        drawing = asyncio.create_task(draw_hold(job, job.sink))
        await asyncio.sleep(2.5 * TICK_S)
        assert len(job.drawn) == 2
        left = "its session keeps 2 CPU slots for"
        assert left in job_page(job, "").screen.detail
        assert left not in kept_page(job).page.screen.detail, "it would stand in the notebook's file for ever"
        job.model.fold(Event(seq=1, at=1.0, by="x", cause="c", data=HoldEnded(job=1, reason="job 2 waits for slots")))
        job.changed(at_once=True)
        await drawing
        assert len(job.drawn) == 3
        assert job_page(job, "").screen.detail == ""

    run(play())


def test_a_rank_s_first_line_is_shown_at_once_and_those_after_it_at_the_calm_pace(tmp_path: Path) -> None:
    job = Followed(tmp_path, "running", ("cpu:0", "cpu:1"))
    printed: dict[int, float] = {}

    async def play() -> None:
        drawing = asyncio.create_task(draw_job(job, job.sink))
        now = asyncio.get_running_loop().time
        for rank in (0, 1):
            await asyncio.sleep(0.1)
            job.print(rank, "first")
            printed[rank] = now()
        await asyncio.sleep(0.1)
        for _ in range(100):
            job.print(0, "one more")
            await asyncio.sleep(0.02)
        job.end()
        await drawing

    run(play())
    for rank, at in printed.items():
        first = next(when for when, lines in job.drawn if str(rank) in lines)
        assert 0 <= first - at <= 2 * POLL_S
    calm = [when for when, _ in job.drawn if when > printed[1] + 2 * POLL_S][:-1]
    assert len(calm) >= 5
    assert all(PUSH_S - 1e-6 <= later - earlier <= PUSH_S + 0.02 for earlier, later in pairwise(calm))
    assert job.drawn[-1][1] == {"0": 101, "1": 1}


def test_a_rank_that_prints_alone_does_not_hasten_the_view(tmp_path: Path) -> None:
    job = Followed(tmp_path, "running", ("cpu:0", "cpu:1"))

    async def play() -> None:
        drawing = asyncio.create_task(draw_job(job, job.sink))
        for _ in range(60):
            job.print(0, "rank 1 is silent")
            await asyncio.sleep(0.02)
        job.end()
        await drawing

    run(play())
    # At the beginning, with the first line, at the calm pace from then on, and at the end.
    assert int(1.2 / PUSH_S) <= len(job.drawn) <= 1.2 / PUSH_S + 3
    assert job.drawn[-1] == (pytest.approx(1.2), {"0": 60})


def test_a_view_without_news_moves_its_clocks_and_ends_at_once(tmp_path: Path) -> None:
    job = Followed(tmp_path, "running", ("cpu:0", "cpu:1"))

    async def play() -> None:
        drawing = asyncio.create_task(draw_job(job, job.sink))
        await asyncio.sleep(10.1)
        job.end()
        await drawing

    run(play())
    times = [when for when, _ in job.drawn]
    assert times[-1] == pytest.approx(10.1)
    assert all(TICK_S <= later - earlier <= TICK_S + PUSH_S for earlier, later in pairwise(times[:-1]))


def test_a_closed_view_does_not_stop_the_drawing(tmp_path: Path) -> None:
    job = Followed(tmp_path, "running", ("cpu:0", "cpu:1"))

    def closed(output: Any) -> None:
        job.sink(output)
        raise RuntimeError("the comm is closed")

    async def play() -> None:
        drawing = asyncio.create_task(draw_job(job, closed))
        await asyncio.sleep(0.1)
        job.end()
        await drawing

    run(play())
    assert len(job.drawn) == 2


def test_a_job_that_prints_before_its_events_are_known_has_begun(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.read_files()
    assert job.model.phase == "queued"
    job.print(0, "here")
    job.read_files()
    assert job.model.phase == "starting"
    requeued = Followed(tmp_path)
    requeued.up_to_date = True  # it waits again: the output is of an attempt before
    requeued.read_files()
    assert requeued.model.phase == "queued"


def test_a_screen_of_the_pool_is_drawn_at_the_first_change_and_then_at_its_pace() -> None:
    async def play() -> list[float]:
        follower, times = PoolFollower(), []
        now = asyncio.get_running_loop().time

        async def draw() -> None:
            async for _ in follower.changes(0.5, 10.0):
                times.append(now())  # noqa: PERF401 - it is cancelled

        drawing = asyncio.create_task(draw())
        await asyncio.sleep(3)
        for _ in range(10):
            follower.changed()
            await asyncio.sleep(0.1)
        await asyncio.sleep(12)
        drawing.cancel()
        return times

    assert run(play()) == pytest.approx([0.0, 3.0, 3.5, 4.0, 14.5])
