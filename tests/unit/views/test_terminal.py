"""The pool's page in the terminal: complete, bounded, nobody's names are markup."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from jupyter_elastic.types import JobInfo, JobSpec, SlotInfo
from jupyter_elastic.types.texts import has_control
from jupyter_elastic.views import terminal
from jupyter_elastic.views.pool_model import PoolModel


def info(job: int, phase: str = "queued", **what: object) -> JobInfo:
    spec = JobSpec(name=f"[red]job[/] {job} <b>", folder="/x", python="/p", min_slots=1, max_slots=2)
    return JobInfo(job=job, owner="ann", spec=spec, phase=phase, submitted_at=job, **what)  # type: ignore[arg-type]


def drawn(model: PoolModel, width: int = 100, **what: float) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(terminal.picture(model.screen(100.0), width=width, **what))  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_picture_says_who_holds_what_and_who_waits() -> None:
    slots = [
        SlotInfo(slot="a:0", state="leased", job=1, owner="ann"),
        SlotInfo(slot="a:1", state="draining", job=1, owner="ann"),
        SlotInfo(slot="b:0", state="free"),
        SlotInfo(slot="b:1", state="out", reason="foreign use"),
    ]
    running = info(1, "running", slots=("a:0",), started_at=40.0)
    slots.append(SlotInfo(slot="b:1000", state="leased", job=1, owner="ann", for_servers=True))
    model = PoolModel(seq=5, jobs=[running, info(2)], slots=slots, policy="fifo", kind="gpu", user="ann")
    model.forecasts = {2: (280.0, 400.0)}
    picture = drawn(model)
    for words in ("1 of 3 GPUs free", "policy fifo", "a [1] [1…]", "b [ ] [x] for servers: [1]", "[red]job[/] 1 <b>",
                  "running for 1 min", "#1 in the queue, starts in about 3 to 5 min",
                  "1 of 3.0, 1 waiting"):  # fmt: skip
        assert words in picture
    assert max(len(line) for line in drawn(model, width=50).splitlines()) <= 50
    assert "has not answered since" in drawn(model, down_since=90.0)


def test_what_an_old_journal_holds_commands_no_terminal() -> None:
    hostile = msgspec.structs.replace(info(1), owner="a\x9b2Jnn")
    hostile = msgspec.structs.replace(hostile, spec=msgspec.structs.replace(hostile.spec, name="x\x1b]0;t\x07\u202ey"))
    model = PoolModel(seq=1, jobs=[hostile], slots=[SlotInfo(slot="a:0", state="free")])
    picture = drawn(model)
    assert not any(has_control(line) for line in picture.splitlines())
    assert "x\\u001b]0;t\\u0007\\u202ey" in picture


def test_a_long_queue_is_cut() -> None:
    model = PoolModel(seq=1, jobs=[info(n) for n in range(1, 5001)], slots=[SlotInfo(slot="a:0", state="free")])
    picture = drawn(model, rows=10)
    assert "and 4,990 more" in picture
    assert len(picture.splitlines()) < 40


def test_an_empty_pool_is_shown_too() -> None:
    assert "no jobs" in drawn(PoolModel())


def test_what_keeps_the_pool_from_taking_jobs_stands_before_the_maintenance() -> None:
    model = PoolModel(seq=1, jobs=[info(1)], user="bob", maintenance="maintenance by ada")
    model.problem = "the journal /a\x1b[2J/j can't be written (disk full): Free some space and try again"
    lines = drawn(model, width=300).splitlines()
    assert lines[0].startswith(r"The pool takes no jobs and no changes now: the journal /a\u001b[2J/j can't be written")
    assert lines[0].rstrip().endswith("Free some space and try again. Running jobs go on.")
    assert lines[1].startswith("maintenance by ada")


def test_maintenance_stands_first_and_its_reason_commands_no_terminal() -> None:
    model = PoolModel(seq=1, jobs=[info(1)], user="bob", maintenance="maintenance by ada: [red]new\x1b[2J driver")
    first = drawn(model).splitlines()[0]
    assert first.rstrip() == r"maintenance by ada: [red]new\u001b[2J driver"
