"""What a job's view costs, and what it shows of the time before it stood."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from jupyter_elastic.widgets.job import JobWidget
from jupyter_elastic.widgets.live import Live, Watched
from jupyter_elastic.widgets.model import JobModel, JobScreen


def test_views_share_their_class_and_their_front_end() -> None:
    first, second = (JobWidget(on_wish=print, page="{}") for _ in range(2))
    assert type(first) is type(second) is JobWidget
    assert first.layout is second.layout
    assert "export" in first.layout.script
    assert "je-job" in first.layout.style
    state = {name: value for name, value in second.get_state().items() if isinstance(value, str)}
    assert len(json.dumps(state)) < 2_000


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
