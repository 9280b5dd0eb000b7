"""What a worker shows, until it is written; and how it is read."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.jobfiles import displays
from jupyter_elastic.jobfiles.displays import Display, Kind
from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.views.output import MAX_DRAWN, RELAYED, Outputs
from jupyter_elastic.worker.display_recorder import Recorder, fitting, queued


def shown(kind: Kind, name: str = "", **data: Any) -> Display:
    return Display(kind=kind, id=name, data=data)


def waiting(*records: Display) -> list[Display]:
    found: list[Display] = []
    for record in records:
        found = queued(found, record)
    return found


def test_of_what_is_renewed_before_it_is_written_the_last_is_written() -> None:
    first, other = shown("display_data", "a", x=1), shown("display_data", "b", x=0)
    assert waiting(first, other, shown("update_display_data", "a", x=2)) == [shown("display_data", "a", x=2), other]
    assert waiting(shown("update_display_data", "a", x=1)) == [shown("update_display_data", "a", x=1)]
    cleared = waiting(shown("comm_open", "w"), first, Display(kind="clear_output", wait=True), other)
    assert cleared == [shown("comm_open", "w"), Display(kind="clear_output", wait=True), other]
    states = [shown("comm_msg", "w", method="update", state=state) for state in ({"v": 1, "u": 1}, {"v": 2})]
    assert waiting(*states) == [shown("comm_msg", "w", method="update", state={"v": 2, "u": 1})]
    assert waiting(states[0], shown("comm_msg", "w", method="custom")) != waiting(states[0])


def test_what_json_has_no_word_for_is_text_and_what_is_too_large_is_said() -> None:
    assert json.loads(fitting(shown("display_data", x={1}))) == {"kind": "display_data", "data": {"x": [1]}}
    large = json.loads(fitting(Display(kind="comm_msg", id="w", buffers=[b"x" * displays.MAX_BYTES])))
    assert large["kind"] == "display_data"
    assert "[not shown: 11 MB" in large["data"]["text/plain"]


def test_a_full_file_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(displays, "MAX_FILE", 300)
    recorder = Recorder()
    recorder.follow(tmp_path)
    for number in range(10):
        recorder._write([shown("display_data", x="x" * 100, n=number)])
    texts = [displays.plain(record.data) for record, _ in displays.Reader(JobFolder(tmp_path)).more()]
    assert texts[:2] == ["n, x", "n, x"]
    assert len(texts) == 3
    assert "left out" in texts[2]


def test_displays_stand_among_the_lines_before_which_they_came(tmp_path: Path) -> None:
    folder = tmp_path / "rank.0"
    folder.mkdir()
    (folder / "stdout").write_bytes(b"one\ntwo\n")
    records = [
        Display(kind="display_data", after=4, id="a", data={"text/plain": "A", "image/png": "aW1n\n"}),
        Display(kind="execute_result", after=8, data={"text/plain": "T", "text/html": "<b>T</b>"}),
        Display(kind="comm_open", id="w"),
    ]
    path = folder / displays.FILE
    path.write_bytes(b"".join(displays.encode(record) + b"\n" for record in records) + b"no record\n{")
    outputs = Outputs(JobFolder(tmp_path))
    assert outputs.poll()
    image = ["image", "A", "data:image/png;base64,aW1n"]
    assert outputs.snapshot()["0"] == [["stdout", "one"], image, ["stdout", "two"], ["html", "T", "<b>T</b>"]]
    (folder / RELAYED).write_text(str(len(displays.encode(records[0])) + 1))  # of which a cell has shown the first
    assert outputs.snapshot()["0"] == [["stdout", "one"], ["stdout", "two"], ["html", "T", "<b>T</b>"]]
    with path.open("ab") as file:
        update = Display(kind="update_display_data", id="a", data={"text/plain": "B", "text/html": "x" * MAX_DRAWN})
        file.write(b"\n" + displays.encode(update) + b"\n")
    assert outputs.poll()
    assert outputs.snapshot()["0"][1] == ["display", "B\n[too much to be drawn here]"]
    with path.open("ab") as file:
        file.write(displays.encode(Display(kind="clear_output")) + b"\n")
    assert outputs.poll()
    assert outputs.snapshot()["0"] == [["stdout", "one"], ["stdout", "two"]]


def test_a_flush_waits_for_what_the_thread_is_writing(tmp_path: Path) -> None:
    """Else the value of a cell's last line is lost when its worker ends meanwhile."""
    writing, go_on = threading.Event(), threading.Event()

    class Slow(Recorder):
        def _write(self, records: list[Display]) -> None:
            writing.set()
            assert go_on.wait(60)
            super()._write(records)

    recorder = Slow()
    recorder.follow(tmp_path)
    recorder.put(shown("display_data", x="late"))
    assert writing.wait(60)
    threading.Timer(0.2, go_on.set).start()
    recorder.flush()
    assert b"late" in (tmp_path / displays.FILE).read_bytes()


def played(folder: Path, steps: list[str], *, late: bool) -> list[str]:
    """What is shown after `steps` of a rank: o, e and d print or display a text, c and w clear at once or with wait.

    `late`: the screen reads only at the end, when all is in the files; else after each step, and the records come last.
    """
    rank = folder / "rank.0"
    rank.mkdir()
    outputs, waiting = Outputs(JobFolder(folder)), []

    def write() -> None:
        with (rank / displays.FILE).open("ab") as file:
            for record in waiting:
                file.write(displays.encode(record) + b"\n")
        waiting.clear()

    for step in steps:
        kind, text = step[0], step[1:]
        out, err = ((rank / name).stat().st_size if (rank / name).exists() else 0 for name in ("stdout", "stderr"))
        if kind in "oe":
            with (rank / {"o": "stdout", "e": "stderr"}[kind]).open("a") as file:
                file.write(text)
        elif kind == "d":
            waiting[:] = queued(waiting, Display(kind="display_data", after=out, data={displays.PLAIN: text}))
        else:
            waiting[:] = queued(waiting, Display(kind="clear_output", after=out, errors=err, wait=kind == "w"))
        if not late:
            outputs.poll()
        if len(waiting) > 2:
            write()
    write()
    outputs.poll()
    return [line[1] for line in outputs.snapshot()["0"]]


@pytest.mark.parametrize("late", [True, False], ids=["late", "at once"])
@pytest.mark.parametrize(
    ("steps", "left"),
    [
        (["oa\n", "c"], []),
        (["oa\n", "w"], ["a"]),
        (["oa\n", "w", "ob\n"], ["b"]),
        (["oa\n", "w", "eb\n"], ["b"]),
        (["ea\n", "ob\n", "w", "dc"], ["c"]),
        (["oa\n", "w", "ob\n", "w", "oc\n", "w"], ["c"]),
        (["oa\n", "c", "ob\n", "w"], ["b"]),
        (["oa", "w", "ob", "w", "oc"], ["c"]),
        (["oa", "w", "ob", "c"], []),
        (["da", "w", "db", "w", "dc", "w"], ["c"]),
        (["da", "ob\n", "w", "oc\n"], ["c"]),
        (["oab", "w", "ocd\n", "oe\n"], ["cd", "e"]),
        (["oaä\n", "w", "oöö\n", "oe\n", "w", "w"], ["öö", "e"]),
    ],
)
def test_clear_output_takes_back_what_was_printed_as_in_a_notebook(
    tmp_path: Path, steps: list[str], left: list[str], late: bool
) -> None:
    assert played(tmp_path, steps, late=late) == left


def test_what_cannot_be_written_is_said_and_what_follows_is_shown(tmp_path: Path) -> None:
    class Ends:
        def __init__(self, problem: BaseException) -> None:
            self.problem = problem

        def __str__(self) -> str:
            raise self.problem

    recorder = Recorder()
    recorder.follow(tmp_path)
    for problem in (SystemExit(), TypeError("no text")):
        recorder.put(Display(kind="display_data", data={displays.PLAIN: Ends(problem)}))
    recorder.put(Display(kind="display_data", data={displays.PLAIN: "last"}))
    found: list[tuple[Display, int]] = []
    reader, limit = displays.Reader(JobFolder(tmp_path)), time.monotonic() + 60
    while not any(record.data == {"text/plain": "last"} for record, _ in found) and time.monotonic() < limit:
        found += reader.more()
    assert [record.data["text/plain"] for record, _ in found[:2]] == [
        "what was displayed can't be kept: SystemExit",
        "what was displayed can't be kept: TypeError: no text",
    ]
    assert found[-1][0].data == {"text/plain": "last"}
