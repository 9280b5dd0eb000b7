"""The static form of a job: complete, escaped, well-formed."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from xml.etree import ElementTree as ET

from jupyter_elastic.client.job_screen import JobScreen, Series, SizePoint
from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.views import static_display
from jupyter_elastic.views.output import MAX_LINE, MAX_LINES, Outputs, without

NASTY = "<script>alert('x')</script> & 🚀 \"q\""


def screen(**what: Any) -> JobScreen:
    given: dict[str, Any] = {
        "job": 7, "name": "digits", "owner": "ann", "engine": "horovod", "phase": "completed", "tone": "good",
        "state": "completed in 12 s", "detail": "", "unit": "GPU", "slots": [], "min_slots": 1, "max_slots": 4,
        "sizes": [SizePoint(at=1, slots=1), SizePoint(at=5, slots=2, reason="one is free", pause_s=0.31),
                  SizePoint(at=9, slots=0, reason="completed")],
        "fraction": 0.5, "eta_s": 65.0, "epoch": 1.5, "epochs": 3.0, "step": 1200, "samples_per_s": 5321.0,
        "metrics": [Series(name="loss", points=[(0, 2.0), (1, 0.5)], last="0.5")],
        "use": None, "usage": [], "speeds": None, "attempt": 1, "preemptions": 0, "submitted_at": 0.0,
        "started_at": 1.0, "ended_at": 9.0, "now": 9.0,
    }  # fmt: skip
    return JobScreen(**{**given, **what})


def parse(html: str) -> ET.Element:
    """Well-formed as XML but for the entities of HTML."""
    return ET.fromstring(html.replace("&nbsp;", " "))


def test_the_html_says_all_and_is_well_formed() -> None:
    html = static_display.html(screen(), {"0": [["stdout", "hello"]], "1": [["stderr", "warned"]]})
    tree = parse(html)
    words = " ".join(tree.itertext())
    for word in ("digits", "job 7 · horovod · 1:4 GPUs", "completed in 12 s", "1 → 2: one is free, 0.3 s pause",
                 "loss", "0.5 to 2", "rank 1", "warned", "epoch 1.5 of 3", "step 1,200"):  # fmt: skip
        assert word in words
    assert len(tree.findall(".//path")) == 1
    assert "<script" not in html
    assert "http" not in html


def test_a_reader_that_drops_styles_and_bare_attributes_shows_what_ranks_print() -> None:
    tree = parse(static_display.html(screen(), {"0": [["stdout", "hello"]], "1": [["stdout", "more"]]}, error="boom"))
    opened = [found.get("open") for found in tree.iter("details")]
    assert opened == ["open", "open", None]  # the failure, rank 0, and folded the others


def test_what_a_job_has_lost_stands_apart_in_the_colour_of_a_warning() -> None:
    lost = screen(phase="queued", tone="wait", state="paused: 1 GPU needed", warning="begins anew: <all> is lost")
    (line,) = [
        found for found in parse(static_display.html(lost)).iter("div") if found.text == "begins anew: <all> is lost"
    ]
    assert line.get("style") == "color:#8f6a00"
    assert "  begins anew: <all> is lost" in static_display.text(lost).splitlines()


def test_everything_is_escaped() -> None:
    html = static_display.html(
        screen(name=NASTY, detail=NASTY, state=NASTY, engine=NASTY,
               sizes=[SizePoint(at=i, slots=i, reason=NASTY) for i in range(4)],
               metrics=[Series(name=NASTY, points=[(0, 1), (1, 2)], last=NASTY)]),
        {"0": [["stdout", NASTY]]}, error=NASTY,
    )  # fmt: skip
    parse(html)
    assert "<script" not in html
    assert "🚀" in html


def test_the_text_form() -> None:
    text = static_display.text(screen(), {"0": [["stdout", "hello"]]}, error="Traceback: boom")
    assert text.splitlines()[0] == "job 7 digits: completed in 12 s"
    assert "GPUs over time: 1 → 2 → 0" in text
    assert "about 1 min 5 s left" in text
    assert "boom" in text
    assert "  hello" in text


def test_a_state_that_will_change_says_of_when_it_is() -> None:
    when = time.strftime("%H:%M, %d %b %Y", time.localtime(1e9))
    going = screen(phase="running", state="running on 2 GPUs", ended_at=None, now=1e9)
    for form in (static_display.html, static_display.text):
        assert f"running on 2 GPUs, as of {when}" in form(going)
        assert "as of" not in form(screen())


def test_an_empty_job_is_shown_too() -> None:
    bare = screen(
        sizes=[], metrics=[], fraction=None, eta_s=None, epoch=None, epochs=None, step=None, samples_per_s=None
    )
    parse(static_display.html(bare))
    assert static_display.text(bare) == "job 7 digits: completed in 12 s"


def test_a_curve_survives_extreme_values() -> None:
    for points in ([(0.0, 1.0), (1.0, 1.0)], [(0.0, -1e308), (1.0, 1e308)], [(5.0, 1.0), (5.0, 2.0)]):
        path, *_ = static_display.curve_path(points, 100, 50)
        assert "nan" not in path
        assert "inf" not in path


def test_output_of_ranks(tmp_path: Any) -> None:
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.10").mkdir()
    (tmp_path / "results").mkdir()
    out = tmp_path / "rank.0" / "stdout"
    outputs = Outputs(JobFolder(tmp_path))
    assert not outputs.poll()
    out.write_bytes(b"a\n 10%\r 20%")
    assert outputs.poll()
    assert outputs.snapshot() == {"0": [["stdout", "a"], ["stdout", " 20%"]], "10": []}
    with out.open("ab") as file:
        file.write("\r100%\ncol\x1b[31mour\x1b[0m é".encode()[:-1])  # a character cut in the middle
    assert outputs.poll()
    assert outputs.snapshot()["0"][-2:] == [["stdout", "100%"], ["stdout", "colour "]]
    with out.open("ab") as file:
        file.write("é".encode()[1:] + b"\n" + b"\xff\n" + b"x" * 5000 + b"\n")
    outputs.poll()
    assert outputs.snapshot()["0"][-3] == ["stdout", "colour é"]
    assert outputs.snapshot()["0"][-2] == ["stdout", "�"]
    assert len(outputs.snapshot()["0"][-1][1]) <= MAX_LINE + 2
    assert not outputs.poll()
    (tmp_path / "rank.10" / "stderr").write_text("warn\n")
    assert outputs.poll()
    assert outputs.snapshot()["10"] == [["stderr", "warn"]]


def test_much_output_is_bounded_and_ends_with_the_right_line(tmp_path: Any) -> None:
    (tmp_path / "rank.0").mkdir()
    out = tmp_path / "rank.0" / "stdout"
    outputs = Outputs(JobFolder(tmp_path))
    out.write_text("early\n")
    outputs.poll()
    with out.open("a") as file:
        file.writelines(f"line {n}\n" for n in range(100_000))
    outputs.poll()
    lines = outputs.ranks[0].lines()
    assert len(lines) <= MAX_LINES
    assert lines[-1] == ("stdout", "line 99999")
    assert outputs.snapshot(first=5)["0"][0] == ["stdout", "line 99995"]
    out.write_text("anew\n")
    outputs.poll()
    assert outputs.ranks[0].lines()[-1] == ("stdout", "anew")


def test_two_pages_read_one_job_at_the_same_time(tmp_path: Any) -> None:
    (tmp_path / "rank.0").mkdir()
    outputs = Outputs(JobFolder(tmp_path))

    def read(_: int) -> list[list[str]]:
        outputs.poll()
        return outputs.snapshot(first=MAX_LINES).get("0", [])

    with ThreadPoolExecutor(8) as threads, (tmp_path / "rank.0" / "stdout").open("w") as file:
        for step in range(300):
            file.write(f"{step}\n")
            file.flush()
            for lines in threads.map(read, range(8)):
                assert lines == [["stdout", str(before)] for before in range(step + 1)]


def test_a_bar_without_end_stays_small(tmp_path: Any) -> None:
    (tmp_path / "rank.0").mkdir()
    out = tmp_path / "rank.0" / "stderr"
    outputs = Outputs(JobFolder(tmp_path))
    for n in range(300):
        with out.open("a") as file:
            file.write(f"\r{n:4d}|{'#' * 100}")
        outputs.poll()
    (line,) = outputs.snapshot()["0"]
    assert line[1].startswith(" 299|")
    assert len(outputs.ranks[0]._open["stderr"]) < 1000


def test_a_traceback_that_is_shown_elsewhere_is_not_shown_again() -> None:
    failure = "Traceback (most recent call last):\n  1 / 0\nZeroDivisionError: x\nrank 1: the same"
    printed = [
        ["stdout", "a"],
        ["stderr", "w"],
        *[["stderr", line] for line in failure.splitlines()[:3]],
        ["stdout", "b"],
    ]
    once = ["note", "[its traceback is shown with the failure]"]
    assert without({"0": printed, "1": [["stdout", "a"]]}, failure) == {
        "0": [["stdout", "a"], ["stderr", "w"], ["stdout", "b"], once],
        "1": [["stdout", "a"]],
    }
    assert without({"0": printed}, "") == {"0": printed}
    assert without({"0": printed}, failure.replace("1 / 0", "2 / 0")) == {"0": printed}
    crash = [["stderr", "w"], ["stderr", "Fatal Python error: Aborted"], ["stderr", ""], ["stderr", '  File "ours"']]
    assert without({"0": crash}, "rank 0: killed\nFatal Python error: Aborted\n") == {"0": [["stderr", "w"], once]}


def test_a_reader_that_keeps_no_style_and_no_picture_reads_sentences() -> None:
    """As GitHub and strict sanitisers leave it: the words stand apart and say all."""
    html = static_display.html(screen(), {"0": [["stdout", "hello"]]}, folder="f0")
    for pattern in (r' style="[^"]*"', r"<svg.*?</svg>"):
        html = re.sub(pattern, "", html, flags=re.DOTALL)
    words = " ".join("".join(parse(html).itertext()).split())
    assert "digits job 7 · horovod · 1:4 GPUs ● completed in 12 s" in words
    assert "loss 0.5 0.5 to 2 rank 0 hello" in words
    assert "jelastic-f0" in html  # by which a live view of this job hides it


def test_a_job_of_one_size_that_is_over_has_no_band() -> None:
    sizes = [SizePoint(at=1, slots=2), SizePoint(at=9, slots=0, reason="completed")]
    assert "GPUs over time" not in static_display.html(screen(sizes=sizes, metrics=[]))
    assert "GPUs over time" in static_display.html(screen(sizes=sizes, metrics=[], phase="running", ended_at=None))
