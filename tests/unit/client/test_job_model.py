"""The fold of a job's events into its screen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jupyter_elastic import types as t
from jupyter_elastic.client.curves import MAX_POINTS
from jupyter_elastic.client.human_times import human_time
from jupyter_elastic.client.job_model import JobModel
from jupyter_elastic.jobfiles.usage import ResourceUsage
from jupyter_elastic.views import static_display

SPEC = t.JobSpec(name="digits", folder="/f", python="/p", min_slots=1, max_slots=4)


class Story:
    """Events of job 7, one a second."""

    def __init__(self, kind: str = "gpu") -> None:
        self.model = JobModel(7, kind=kind)
        self.seq = 0

    def tell(self, data: t.EventData, at: float | None = None) -> Story:
        self.seq += 1
        self.model.fold(
            t.Event(seq=self.seq, at=float(self.seq) if at is None else at, by="x", cause="c", data=data)  # type: ignore[arg-type]
        )
        return self

    def submitted(self) -> Story:
        return self.tell(t.JobSubmitted(job=7, owner="ann", spec=SPEC))

    def started(self, *slots: str, attempt: int = 1) -> Story:
        return self.tell(t.JobStarted(job=7, attempt=attempt, generation=1, slots=slots))

    def running(self, *slots: str, pause: float = 0.0) -> Story:
        return self.tell(t.JobRunning(job=7, attempt=1, generation=1, slots=slots, pause_s=pause))

    def progress(self, at: float | None = None, **what: Any) -> Story:
        return self.tell(t.JobProgressed(job=7, attempt=1, progress=t.Progress(**what)), at)


def test_a_life_in_words() -> None:
    story = Story().submitted()
    assert story.model.screen(2).state == "waiting: 1 GPU needed"
    story.model.explanation = "behind one job"
    assert story.model.screen(2).detail == "behind one job"
    assert story.started("h:0").model.screen(3).state == "starting on 1 GPU"
    assert story.running("h:0").model.screen(3).state == "running on 1 GPU"
    story.tell(t.RescaleRequested(job=7, attempt=1, generation=2, slots=("h:0", "h:1"), reason="two became free"))
    assert story.model.screen(4).state == "growing from 1 to 2 GPUs"
    assert story.model.screen(4).detail == "two became free"
    story.running("h:0", "h:1", pause=0.2)
    story.tell(t.StopRequested(job=7, attempt=1, how="preempt", reason="another user's job"))
    assert story.model.screen(5).state == "stopping: another user's job"
    story.tell(t.JobRequeued(job=7, attempt=1, cause="preempted", reason="another user's job"))
    screen = story.model.screen(6)
    assert screen.state == "paused: 1 GPU needed"
    assert screen.warning == "begins anew: it had kept no commit (--no-preempt rules a pause out)"
    assert screen.detail == "another user's job. behind one job"
    assert screen.preemptions == 1
    story.started("h:1", attempt=2).running("h:1").tell(t.JobEnded(job=7, outcome="completed"))
    screen = story.model.screen(100)
    assert screen.state == "completed in 8.0 s"
    assert screen.fraction == 1.0
    assert [(p.slots, p.reason) for p in screen.sizes] == [
        (1, "started"),
        (2, "two became free"),
        (0, "preempted: another user's job"),
        (1, "started again"),
        (0, "completed"),
    ]
    assert screen.sizes[1].pause_s == 0.2
    assert story.model.ended


def paused(elastic: bool | None, cause: Any = "preempted", **progress: Any) -> Story:
    """A job that ran and was taken its slots."""
    story = Story().submitted().started("h:0")
    story.tell(t.JobRunning(job=7, attempt=1, generation=1, slots=("h:0",), elastic=elastic))
    if progress:
        story.progress(**progress)
    return story.tell(t.JobRequeued(job=7, attempt=1, cause=cause, reason="another user's job"))


ANEW, OUT = "begins anew: this cell keeps no commits", " (--no-preempt rules a pause out)"


@pytest.mark.parametrize(
    ("story", "warning", "detail"),
    [
        (paused(False), ANEW + OUT, "another user's job. "),
        (paused(False, step=73), ANEW + OUT, "another user's job. "),  # what it reports is no commit
        (paused(False, "host lost"), ANEW, "another user's job. "),  # which no option rules out
        (paused(None), "begins anew: it had kept no commit" + OUT, "another user's job. "),
        (paused(True, step=1200), "", "another user's job; goes on from step 1,200. "),
        (paused(True, epoch=2.0), "", "another user's job; goes on from its last commit. "),
        (paused(True, "host lost", step=73), "", "another user's job; goes on from its last commit. "),
    ],
)
def test_a_paused_job_says_what_it_has_lost(story: Story, warning: str, detail: str) -> None:
    screen = story.model.screen(9)
    assert (screen.state, screen.warning, screen.detail) == ("paused: 1 GPU needed", warning, detail)
    assert not story.started("h:0", attempt=2).model.screen(10).warning


def test_a_commit_of_an_earlier_attempt_counts() -> None:
    story = paused(True).started("h:0", attempt=2)
    story.tell(t.JobRequeued(job=7, attempt=2, cause="preempted", reason="again"))  # before its loop
    assert not story.model.screen(9).warning
    info = t.JobInfo(
        job=7, owner="ann", spec=SPEC, phase="queued", submitted_at=0.0, attempt=2, preemptions=2, reason="again"
    )
    joined = JobModel(7, kind="gpu")
    joined.describe(info)
    assert (joined.screen(9).warning, joined.screen(9).detail) == ("", "again; begins again. ")
    assert info.note == "again; begins again"
    assert msgspec.structs.replace(info, elastic=False).note == f"again; {ANEW}{OUT}"
    assert msgspec.structs.replace(info, phase="running").note == "again"
    assert msgspec.structs.replace(info, elastic=True, spec=msgspec.structs.replace(SPEC, folder="")).note == "again"


@pytest.mark.parametrize(("outcome", "word"), [("failed", "failed after"), ("cancelled", "its slots are free again")])
def test_other_ends(outcome: Any, word: str) -> None:
    story = Story().submitted().started("h:0").tell(t.JobEnded(job=7, outcome=outcome, reason="rank 1 raised"))
    screen = story.model.screen(9)
    assert word in screen.state
    assert screen.detail == "rank 1 raised"


def test_what_a_session_keeps_after_a_cell_in_words() -> None:
    story = Story(kind="cpu")
    spec = msgspec.structs.replace(SPEC, session="work", hold_s=30.0)
    story.tell(t.JobSubmitted(job=7, owner="ann", spec=spec)).started("cpu:0", "cpu:1").running("cpu:0", "cpu:1")
    story.tell(t.JobEnded(job=7, outcome="completed", held=2), at=100.0)
    assert story.model.hold(100.5) == "its session keeps 2 CPU slots for 30 s more, unless somebody waits"
    assert story.model.hold(130.0) == ""
    story.tell(t.HoldEnded(job=7, reason="job 8 waits for slots"), at=101.0)
    assert story.model.hold(101.0) == ""


def test_slots_that_a_sessions_memory_can_not_leave_in_words() -> None:
    story = Story(kind="gpu")
    story.tell(t.JobSubmitted(job=7, owner="ann", spec=msgspec.structs.replace(SPEC, session="work")))
    story.started("lab:0", "lab:1").running("lab:0", "lab:1")
    why = "its memory can't leave the device"
    end = t.JobEnded(job=7, outcome="completed", pinned=("lab:0", "lab:1"), pinned_why=why, pinned_s=600.0)
    story.tell(end, at=100.0)
    assert story.model.retention is not None
    assert story.model.hold(100.5) == f"its session keeps lab:0, lab:1 for 600 s more at most: {why}"
    assert story.model.hold(900.0) == f"its session keeps lab:0, lab:1 for 0 s more at most: {why}"
    story.tell(t.SlotsReleased(job=7, attempt=1, slots=("lab:0", "lab:1")), at=901.0)
    assert story.model.hold(901.0) == ""
    assert story.model.retention is None


def test_cpu_slots_are_called_so() -> None:
    assert Story("cpu").submitted().model.screen(1).state == "waiting: 1 CPU slot needed"


def test_progress_and_time_to_go() -> None:
    story = Story().submitted().started("h:0").running("h:0")
    story.progress(at=10, samples=100, total_samples=1000, samples_per_s=50)
    screen = story.model.screen(10)
    assert screen.fraction == 0.1
    assert screen.eta_s == pytest.approx(18)
    story.progress(at=20, samples=200, total_samples=1000, samples_per_s=50)
    assert story.model.screen(20).eta_s == pytest.approx(80)  # what was measured goes before what is said
    assert story.model.screen(30).eta_s == pytest.approx(70)
    story.progress(at=31, epoch=1.5, epochs=3)
    assert story.model.screen(31).fraction == 0.5
    story.progress(at=32, samples=10, total_samples=0, epochs=2)
    assert story.model.screen(32).fraction is None


def test_curves_are_bounded_and_know_no_nan() -> None:
    story = Story().submitted().started("h:0").running("h:0")
    for step in range(5000):
        story.progress(step=step, metrics={"loss": 1 / (step + 1)}, not_finite=("bad",))
    loss, bad = story.model.screen(0).metrics
    assert MAX_POINTS / 4 < len(loss.points) <= MAX_POINTS + 3
    assert loss.points[0] == (0.0, 1.0)
    assert loss.points[-1] == (4999.0, 1 / 5000)
    assert bad.points == []
    assert bad.last == "nan"
    story.progress(step=100, metrics={"loss": 0.5})  # rolled back to a commit
    assert story.model.screen(0).metrics[0].points[-1] == (100.0, 0.5)
    for index in range(100):
        story.progress(metrics={f"m{index}": 1.0})
    assert len(story.model.screen(0).metrics) <= 24


def test_the_figures_are_those_of_the_present_training_of_the_cell() -> None:
    story = Story().submitted().started("h:0").running("h:0")
    for step in (1, 2, 3):
        story.progress(step=step, epoch=float(step), epochs=3.0, metrics={"loss": 1.0})
    assert story.model.screen(0).training == 1
    for step in (1, 2):
        story.progress(step=step, epoch=float(step), epochs=4.0, training=2, metrics={"accuracy": 0.5})
    screen = story.model.screen(0)
    assert (screen.training, screen.fraction, [curve.name for curve in screen.metrics]) == (2, 0.5, ["accuracy"])
    assert static_display.figures(screen)[:2] == ["training 2", "50 %"]


def test_a_long_curve_keeps_its_spikes() -> None:
    story = Story().submitted().started("h:0").running("h:0")
    spikes = {1_234: 50.0, 3_001: -7.0, 19_998: 90.0}
    for step in range(20_000):
        story.progress(step=step, metrics={"loss": spikes.get(step, 1.0)})
    (loss,) = story.model.screen(0).metrics
    assert {(float(step), value) for step, value in spikes.items()} <= set(loss.points)
    assert loss.points == sorted(loss.points)
    assert len(loss.times) == len(loss.points) <= MAX_POINTS + 3


def test_events_of_others_and_repeated_ones_change_nothing() -> None:
    story = Story().submitted().started("h:0")
    before = msgspec.json.encode(story.model.screen(5))
    story.tell(t.JobEnded(job=8, outcome="completed")).tell(t.PolicyUsed(name="fifo"))
    story.model.fold(t.Event(seq=1, at=1, by="x", cause="c", data=t.JobEnded(job=7, outcome="failed")))
    assert msgspec.json.encode(story.model.screen(5)) == before


def test_a_resize_and_a_late_description() -> None:
    story = Story().submitted().tell(t.JobResized(job=7, min_slots=2, max_slots=3))
    assert (story.model.screen(1).min_slots, story.model.screen(1).max_slots) == (2, 3)
    model = JobModel(7)
    model.describe(t.JobInfo(job=7, owner="ann", spec=SPEC, phase="running", slots=("h:0",), submitted_at=1.0))
    assert model.screen(2).state == "running on 1 CPU slot"


def test_a_deadline_that_is_changed_is_the_views_too() -> None:
    story = Story().submitted().tell(t.JobResized(job=7, min_slots=2, max_slots=3, deadline_at=1e9, sizes=(2, 3)))
    assert story.model.spec is not None
    assert (story.model.spec.deadline_at, story.model.spec.sizes) == (1e9, (2, 3))


def test_a_cell_without_an_elastic_loop_says_that_its_size_stays() -> None:
    story = Story().submitted().started()
    given = {"job": 7, "attempt": 1, "generation": 1, "slots": ("h:0", "h:1")}
    for elastic, words in (
        (None, "size stays 2 until the cell comes to an elastic loop"),
        (False, "size stays 2: this cell has no elastic loop"),
        (True, ""),
    ):
        story.tell(t.JobRunning(**given, elastic=elastic))
        assert story.model.screen(2).detail.rpartition("; ")[2] == words


@pytest.mark.parametrize(
    ("servers", "words"), [(1, "and 1 for a parameter server"), (2, "and 2 for parameter servers")]
)
def test_a_training_with_parameter_servers_waits_for_their_slots_too(servers: int, words: str) -> None:
    model = JobModel(7)
    spec = msgspec.structs.replace(SPEC, min_servers=servers, max_servers=2)
    model.describe(t.JobInfo(job=7, owner="ann", spec=spec, phase="queued", slots=(), submitted_at=1.0))
    assert model.screen(2).state == f"waiting: 1 CPU slot {words} needed"


def test_a_training_with_parameter_servers_says_what_would_let_its_size_change() -> None:
    range_of_servers = msgspec.structs.replace(SPEC, min_slots=1, max_slots=1, min_servers=1, max_servers=2)
    assert t.size_stays(range_of_servers, 2, None) == "size stays 2 until the cell comes to training.boundary()"
    words = "size stays 2: this cell calls no training.boundary() where it has saved, and is not --resumable"
    assert t.size_stays(range_of_servers, 2, False) == words
    assert t.size_stays(msgspec.structs.replace(range_of_servers, max_servers=1), 2, False) == ""


def test_durations_for_people() -> None:
    assert [human_time(s) for s in (-1, 0.24, 9.97, 59, 61, 3700, 90_000)] == [
        "0.0 s", "0.2 s", "10 s", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h",
    ]  # fmt: skip


def test_one_statement_about_the_start() -> None:
    story = Story().submitted()
    until = "Its start time is unknown."
    story.model.explain(f"It needs 4 slots to start.\n{until}", until)
    assert story.model.screen(2).detail == f"It needs 4 slots to start. {until}"
    story.model.forecast = (44.0, 58.0)
    screen = story.model.screen(2)
    assert "starts in about 42 to 56 s" in screen.state
    assert screen.detail == "It needs 4 slots to start."
    story.model.explain("The agent of ann is not connected.", "")  # nothing that waiting helps
    screen = story.model.screen(3)
    assert "starts in" not in screen.state
    assert screen.detail == "The agent of ann is not connected."


def test_deaths_stand_in_the_story() -> None:
    story = Story().submitted().started("h:0", "h:1").running("h:0", "h:1")
    about: dict[str, Any] = {"job": 7, "attempt": 1, "rank": 1, "slot": "h:1", "count": 1}
    story.tell(t.WorkerDied(**about, cause="was killed by SIGKILL", step=120))
    story.tell(t.WorkerReplaced(**about, after_s=0.42))
    screen = story.model.screen(9)
    assert [(p.slots, p.reason) for p in screen.sizes[1:]] == [
        (2, "rank 1 was killed by SIGKILL at step 120"),
        (2, "rank 1 was replaced after 0.4 s"),
    ]
    assert static_display.change(screen.sizes[1], 2) == "rank 1 was killed by SIGKILL at step 120"
    assert "rank 1 was replaced after 0.4 s" in static_display.html(screen)
    assert "over time" not in static_display.text(screen)


def test_who_waits_for_whom_is_shown_while_it_is_so() -> None:
    story = Story().submitted().started("h:0", "h:1").running("h:0", "h:1")
    waits = "rank 0 waits for rank 1 since 60 s, which is at <In[3]>:9"
    story.model.use = ResourceUsage(at=100.0, workers=2, cores=1.0, memory=1, gpus=[], waits=waits)
    screen = story.model.screen(101.0)
    assert waits in static_display.text(screen)
    assert "rank 1 since 60 s, which is at &lt;In[3]&gt;:9" in static_display.html(screen)
    assert "waits" not in static_display.html(story.model.screen(200.0))  # nobody knows any more


def test_who_uses_its_slots_without_a_lease_is_told() -> None:
    process = t.GpuProcess(pid=9, started_at=1.0, uid=1001, user="bob", name="python")

    def hosts(*processes: t.GpuProcess) -> t.HostsChanged:
        return t.HostsChanged(hosts=(t.Host(name="h", kind="gpu", slots=(t.Slot(index=0, processes=processes),)),))

    story = Story().submitted().started("h:0").running("h:0").tell(hosts(process))
    assert "h:0 is also used by bob (python, pid 9), who has not leased it" in story.model.screen(5).detail
    assert "bob" not in story.tell(hosts()).model.screen(6).detail
    elsewhere = Story().submitted().started("h:1").running("h:1").tell(hosts(process))
    assert "bob" not in elsewhere.model.screen(5).detail
