"""What a job's view costs, and what it shows of the time before it stood."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from jupyter_elastic.client.job_model import JobModel, JobScreen
from jupyter_elastic.widgets.job import JobWidget
from jupyter_elastic.widgets.live import PUSH_S, Live, Watched


def test_views_share_their_class_and_their_front_end() -> None:
    first, second = (JobWidget(on_wish=print, page="{}") for _ in range(2))
    assert type(first) is type(second) is JobWidget
    assert first.layout is second.layout
    assert "export" in first.layout.script
    assert "je-job" in first.layout.style
    state = {name: value for name, value in second.get_state().items() if isinstance(value, str)}
    assert len(json.dumps(state)) < 2_000


def test_a_tool_without_widgets_is_shown_no_object_of_ours() -> None:
    data, _ = JobWidget(on_wish=print, page="{}")._repr_mimebundle_()  # type: ignore[misc]
    assert data["text/plain"] == ""
    assert "application/vnd.jupyter.widget-view+json" in data


def test_what_was_printed_before_the_view_stood_is_shown_at_once(tmp_path: Path) -> None:
    watched = Watched(1, tmp_path, JobModel(1))
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").write_text("early\n")
    watched.push()  # nobody looks yet
    shown, drawn = [], threading.Event()

    def sink(_screen: JobScreen, output: Any) -> None:
        shown.append(output)
        drawn.set()

    Live().add(watched, sink)
    assert drawn.wait(60)
    assert shown == [{"0": [["stdout", "early"]]}]


def test_a_rank_that_prints_alone_does_not_hasten_the_view(tmp_path: Path) -> None:
    model = JobModel(1)
    model.phase, model.slots = "running", ("cpu:0", "cpu:1")
    watched, drawn = Watched(1, tmp_path, model), []
    watched.sinks.append(lambda *_: drawn.append(1))
    (tmp_path / "rank.0").mkdir()
    live, begun = Live(), time.monotonic()
    live.run(live._pulse(watched))
    with (tmp_path / "rank.0" / "stdout").open("w", buffering=1) as file:
        for _ in range(60):
            print("rank 1 is silent", file=file)
            time.sleep(0.02)
    model.phase = "completed"
    watched.current.set()
    assert watched.ended.wait(60)
    # At once, with the first line, at the calm pace from then on, and at the end.
    assert len(drawn) <= (time.monotonic() - begun) / PUSH_S + 3


def test_a_job_that_prints_before_its_story_is_known_has_begun(tmp_path: Path) -> None:
    watched = Watched(1, tmp_path, JobModel(1))
    watched.push()
    assert watched.model.phase == "queued"
    (tmp_path / "rank.0").mkdir()
    watched.push()
    assert watched.model.phase == "starting"
    requeued = Watched(1, tmp_path, JobModel(1))
    requeued.current.set()  # it waits again: the output is of an attempt before
    requeued.push()
    assert requeued.model.phase == "queued"
