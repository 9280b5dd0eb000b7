"""The pool's screen is a fold: what it shows after any event is what the events say."""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import msgspec
from rich.console import Console

from jupyter_elastic.types import (
    AnyEventData,
    Drain,
    DrainsChanged,
    Event,
    GpuProcess,
    Host,
    HostsChanged,
    JobEnded,
    JobInfo,
    JobProgressed,
    JobRequeued,
    JobRunning,
    JobSpec,
    JobStarted,
    JobSubmitted,
    PlanAccepted,
    PlanRejected,
    PolicyUsed,
    Progress,
    RescaleRequested,
    Slot,
    SlotInfo,
    SlotsReleased,
    StopRequested,
    other_machines,
)
from jupyter_elastic.views import terminal
from jupyter_elastic.views.pool_history import MAX_POINTS
from jupyter_elastic.views.pool_model import PoolModel
from jupyter_elastic.views.pool_screen import PoolScreen


def spec(name: str = "digits", least: int = 1, most: int = 2, session: str = "") -> JobSpec:
    about = {"min_slots": least, "max_slots": most, "session": session}
    return JobSpec(name=name, folder="/x", python="/usr/bin/python3", **about)


class Story:
    """Folds events with rising seq, one second apart."""

    def __init__(self, slots: int = 4) -> None:
        self.model = PoolModel(user="ann")
        self.seq = itertools.count(1)
        self.now = 1000.0
        self.tell(HostsChanged(hosts=(Host(name="lab", kind="cpu", slots=tuple(Slot(index=i) for i in range(slots))),)))

    def tell(self, *events: AnyEventData, by: str = "ann") -> Story:
        for data in events:
            self.now += 2
            self.model.fold(Event(seq=next(self.seq), at=self.now, by=by, cause="c", data=data))
        return self

    def screen(self, **window: Any) -> PoolScreen:
        return self.model.screen(self.now, **window)

    def states(self) -> list[str]:
        return [slot.state for host in self.screen().hosts for slot in host.slots]


def test_a_job_from_queue_to_end() -> None:
    story = Story().tell(JobSubmitted(job=1, owner="ann", spec=spec()))
    (row,) = story.screen().jobs
    assert (row.position, row.held, row.phase) == (1, 0, "queued")
    story.tell(JobStarted(job=1, attempt=1, generation=1, slots=("lab:0", "lab:1")))
    story.tell(JobRunning(job=1, attempt=1, generation=1, slots=("lab:0", "lab:1")))
    story.tell(JobProgressed(job=1, attempt=1, progress=Progress(samples=50, total_samples=200)))
    (row,) = story.screen().jobs
    assert (row.position, row.held, row.phase, row.fraction) == (None, 2, "running", 0.25)
    assert story.states() == ["leased", "leased", "free", "free"]
    story.tell(SlotsReleased(job=1, attempt=1, slots=("lab:0", "lab:1")), JobEnded(job=1, outcome="completed"))
    assert story.screen().jobs == []
    assert story.states() == ["free"] * 4


def test_a_shrink_drains_until_the_slot_is_released() -> None:
    story = Story().tell(
        JobSubmitted(job=1, owner="ann", spec=spec()),
        JobStarted(job=1, attempt=1, generation=1, slots=("lab:0", "lab:1")),
        RescaleRequested(job=1, attempt=1, generation=2, slots=("lab:0",), reason="makes room for job 2 of bob"),
    )
    assert story.states()[:2] == ["leased", "draining"]
    assert story.screen().notes[0].text == "2 → 1 slot: makes room for job 2 of bob"
    story.tell(SlotsReleased(job=1, attempt=1, slots=("lab:1",)))
    assert story.states()[:2] == ["leased", "free"]
    assert story.screen().jobs[0].held == 1


def test_slots_that_a_session_keeps_stay_its_owners_on_the_map_until_they_are_released() -> None:
    story = Story().tell(
        JobSubmitted(job=1, owner="ann", spec=spec(session="work")),
        JobStarted(job=1, attempt=1, generation=1, slots=("lab:0", "lab:1")),
        JobEnded(job=1, outcome="completed", pinned=("lab:0", "lab:1"), pinned_why="TensorFlow is loaded"),
    )
    assert story.states()[:2] == ["leased", "leased"]
    slot = story.screen().hosts[0].slots[0]
    assert (slot.job, slot.owner, slot.reason) == (1, "ann", "kept by the session 'work': TensorFlow is loaded")
    story.tell(
        JobSubmitted(job=2, owner="ann", spec=spec(session="work")),
        SlotsReleased(job=1, attempt=1, slots=("lab:0", "lab:1")),
        JobStarted(job=2, attempt=1, generation=1, slots=("lab:0", "lab:1")),
    )
    slot = story.screen().hosts[0].slots[0]
    assert (slot.state, slot.job, slot.reason) == ("leased", 2, "")


def test_a_preempted_job_waits_at_its_old_place() -> None:
    story = Story().tell(
        JobSubmitted(job=1, owner="ann", spec=spec()),
        JobSubmitted(job=2, owner="bob", spec=spec()),
        JobStarted(job=1, attempt=1, generation=1, slots=("lab:0",)),
        StopRequested(job=1, attempt=1, how="preempt"),
    )
    assert story.states()[0] == "draining"
    story.tell(
        SlotsReleased(job=1, attempt=1, slots=("lab:0",)),
        JobRequeued(job=1, attempt=1, cause="preempted", reason="bob's turn"),
    )
    rows = story.screen().jobs
    assert [(row.job, row.position, row.reason) for row in rows] == [
        (1, 1, "bob's turn; begins anew: it had kept no commit"),
        (2, 2, ""),
    ]
    assert (story.screen().history[-1].queued, story.screen().history[-1].leased) == (2, {})
    points = len(story.screen().history)
    story.tell(PlanAccepted(policy="fifo", reasons={"2": "waits"}))
    assert len(story.screen().history) == points  # what changes no slot and no queue is no point


def test_events_that_were_folded_before_change_nothing() -> None:
    story = Story().tell(JobSubmitted(job=1, owner="ann", spec=spec()))
    before = story.screen()
    story.model.fold(Event(seq=1, at=9999.0, by="x", cause="c", data=JobEnded(job=1, outcome="failed")))
    assert story.screen() == before


def test_shares_count_who_wants_slots() -> None:
    story = Story().tell(
        JobSubmitted(job=1, owner="ann", spec=spec()),
        JobSubmitted(job=2, owner="bob", spec=spec()),
        JobStarted(job=1, attempt=1, generation=1, slots=("lab:0", "lab:1", "lab:2")),
    )
    shares = {row.user: row for row in story.screen().shares}
    assert (shares["ann"].held, shares["ann"].entitled, shares["bob"].held) == (3, 2.0, 0)
    assert shares["bob"].queued == 1
    story.now += 10
    used = {row.user: row.slot_seconds for row in story.screen().shares}
    assert used["ann"] == 30.0


def test_who_is_likely_to_start_first_is_the_first_in_the_queue() -> None:
    story = Story().tell(*(JobSubmitted(job=job, owner="ann", spec=spec()) for job in (1, 2, 3, 4)))
    story.tell(JobStarted(job=1, attempt=1, generation=1, slots=("lab:0",)))
    story.model.forecasts = {2: (1042.0, 1056.0), 4: (1021.0, 1039.0)}
    assert [(row.job, row.position) for row in story.screen().jobs] == [(1, None), (2, 2), (3, 3), (4, 1)]
    assert [row.position for row in story.screen(limit=1, offset=3).jobs] == [1]


def test_a_range_that_says_nothing_is_not_shown() -> None:
    """Its low end still says who is likely to be first."""
    story = Story().tell(*(JobSubmitted(job=job, owner="ann", spec=spec()) for job in (1, 2, 3)))
    story.tell(JobStarted(job=1, attempt=1, generation=1, slots=("lab:0",)))
    story.model.forecasts = {2: (1042.0, math.inf), 3: (1021.0, 1039.0)}
    _, second, third = story.screen().jobs
    assert (second.wait_s, second.reason, second.position) == (None, "start not known yet, 1 job before it", 2)
    assert (third.position, third.wait_s is None) == (1, False)


def test_what_a_plan_says_of_a_job_and_then_does_is_one_note() -> None:
    story = Story().tell(
        JobSubmitted(job=1, owner="ann", spec=spec()),
        JobSubmitted(job=2, owner="bob", spec=spec()),
        JobStarted(job=1, attempt=1, generation=1, slots=("lab:0", "lab:1")),
        PlanAccepted(policy="fifo", reasons={"2": "slots are free for it"}),
        PlanAccepted(policy="fifo", reasons={"3": "waits"}),
        PlanAccepted(policy="fifo", reasons={"2": "slots are free for it", "3": "waits"}),
        RescaleRequested(job=1, attempt=1, generation=2, slots=("lab:0",), reason="resized to 1 by ann"),
        JobStarted(job=2, attempt=1, generation=1, slots=("lab:1",), reason="slots are free for it"),
        StopRequested(job=1, attempt=1, how="cancel", reason="cancelled from the browser"),
        PlanAccepted(policy="fifo", reasons={"2": "bob's turn"}),
        StopRequested(job=2, attempt=1, how="preempt", reason="bob's turn"),
    )
    assert [note.text for note in story.screen().notes] == [
        "paused: bob's turn",
        "cancelled from the browser",
        "started on 1 slot: slots are free for it",
        "2 → 1 slot: resized to 1 by ann",
        "waits",
        "started on 2 slots",
    ]


def test_a_window_of_five_thousand_jobs() -> None:
    story = Story()
    for job in range(1, 5001):
        story.tell(JobSubmitted(job=job, owner="ann", spec=spec()))
    screen = story.screen(limit=50, offset=100)
    assert screen.total_jobs == 5000
    assert [row.position for row in screen.jobs] == list(range(101, 151))
    assert len(screen.history) == MAX_POINTS


def test_switches_and_rejected_plans_are_told_with_who_and_why() -> None:
    story = Story().tell(
        PolicyUsed(name="las", previous="fifo", options={"threshold_slot_h": 1}, reason="deadline week"), by="root"
    )
    story.tell(PlanRejected(policy="las", reason="unknown job 7"), PlanAccepted(policy="las", reasons={"3": "waits"}))
    screen = story.screen()
    assert (screen.policy, screen.switches[0].by, screen.switches[0].reason) == ("las", "root", "deadline week")
    assert [note.text for note in screen.notes] == ["waits", "plan of las not followed: unknown job 7"]


def test_slots_taken_out_keep_their_reason() -> None:
    story = Story(slots=1)
    gone = Host(name="lab", kind="gpu", slots=(Slot(index=0, device="GPU-1", out="in use by process 77"),))
    story.tell(HostsChanged(hosts=(gone,)))
    (box,) = story.screen().hosts[0].slots
    assert (box.state, box.reason) == ("out", "in use by process 77")
    assert story.screen().kind == "gpu"


def test_slots_for_servers_are_shown_and_counted_for_nobody() -> None:
    story = Story(slots=1).tell(JobSubmitted(job=1, owner="ann", spec=spec()))
    slots = (Slot(index=0, device="GPU-1"), Slot(index=1000, for_servers=True), Slot(index=1001, for_servers=True))
    story.tell(HostsChanged(hosts=(Host(name="lab", kind="gpu", slots=slots),)))
    story.tell(JobStarted(job=1, attempt=1, generation=1, slots=("lab:0", "lab:1000"), servers=1))
    screen = story.screen()
    assert [(box.slot, box.state, box.for_servers) for box in screen.hosts[0].slots] == [
        ("lab:0", "leased", False), ("lab:1000", "leased", True), ("lab:1001", "free", True),
    ]  # fmt: skip
    assert screen.jobs[0].held == 1
    assert [(share.held, share.entitled) for share in screen.shares] == [(1, 1.0)]
    assert (screen.history[-1].capacity, screen.history[-1].leased) == (1, {"ann": 1})


def test_a_leased_slot_that_another_uses_says_so_and_is_out_when_it_is_released() -> None:
    process = GpuProcess(pid=9, started_at=1.0, uid=1001, user="bob", name="python")
    story = Story(slots=1).tell(JobSubmitted(job=1, owner="ann", spec=spec()))
    story.tell(JobStarted(job=1, attempt=1, generation=1, slots=("lab:0",)))
    story.tell(HostsChanged(hosts=(Host(name="lab", kind="gpu", slots=(Slot(index=0, processes=(process,)),)),)))
    (box,) = story.screen().hosts[0].slots
    assert (box.state, box.reason) == ("leased", "also used by bob (python, pid 9), who has not leased it")
    story.tell(SlotsReleased(job=1, attempt=1, slots=("lab:0",)))
    (box,) = story.screen().hosts[0].slots
    assert (box.state, box.reason) == ("out", "in use outside the pool by bob (python, pid 9)")


def test_drained_slots_and_maintenance_are_shown_until_they_end() -> None:
    story = Story(slots=2)
    story.tell(JobSubmitted(job=1, owner="ann", spec=spec()))
    fan = Drain(target="lab:0", reason="fan", by="ada", at=0.0)
    story.tell(DrainsChanged(target="lab:0", drained=True, drains=(fan,)))
    boxes = story.screen().hosts[0].slots
    assert [(box.state, box.reason) for box in boxes] == [("out", "drained by ada: fan"), ("free", "")]
    story.tell(DrainsChanged(target="", drained=True, drains=(fan, Drain(reason="driver", by="ada", at=1.0))))
    assert {box.state for box in story.screen().hosts[0].slots} == {"out"}
    assert story.screen().maintenance == "maintenance by ada: driver"
    assert story.screen().jobs[0].reason == "waits for the end of the maintenance"
    assert story.screen().notes[0].text == "the pool: maintenance by ada: driver"
    story.tell(DrainsChanged(target="", drained=False, drains=(fan,)))
    assert [box.state for box in story.screen().hosts[0].slots] == ["out", "free"]
    assert story.screen().maintenance == ""
    assert story.screen().jobs[0].reason != "waits for the end of the maintenance"


def test_begins_from_what_the_daemon_answers_and_travels_as_json() -> None:
    info = JobInfo(job=7, owner="bob", spec=spec("<b>💥</b>"), phase="running", slots=("lab:0",), submitted_at=1.0)
    model = PoolModel(
        seq=41, jobs=[info], slots=[SlotInfo(slot="lab:0", state="leased", job=7, owner="bob")], policy="las"
    )
    model.fold(
        Event(seq=42, at=5.0, by="bob", cause="c", data=JobRunning(job=7, attempt=1, generation=1, slots=("lab:0",)))
    )
    screen = msgspec.json.decode(msgspec.json.encode(model.screen(6.0)), type=PoolScreen)
    assert screen == model.screen(6.0)
    assert screen.jobs[0].name == "<b>💥</b>"


def test_under_maintenance_the_page_says_why_and_tells_nobody_when_a_job_starts() -> None:
    model = PoolModel(seq=1, jobs=[waiting(1)], slots=[SlotInfo(slot="a:0", state="free")], user="ann", maintenance="x")
    model.forecasts[1] = (10.0, 20.0)
    (row,) = (screen := model.screen(5.0)).jobs
    assert (screen.maintenance, row.wait_s, row.reason) == ("x", None, "waits for the end of the maintenance")
    model.maintenance = ""
    assert model.screen(5.0).jobs[0].wait_s == (5.0, 15.0)


def test_who_administers_may_change_what_is_others() -> None:
    for user, administers, mine in (("ann", False, True), ("bob", False, False), ("bob", True, True)):
        model = PoolModel(seq=1, jobs=[waiting(1)], user=user, administers=administers)
        assert model.screen(5.0).jobs[0].mine is mine


def waiting(job: int) -> JobInfo:
    return JobInfo(job=job, owner="ann", spec=spec(), phase="queued", submitted_at=0.0)


def test_the_status_line_counts_ones_own_jobs_and_remembers_their_ends() -> None:
    story = Story()
    for number, owner in enumerate(("ann", "ann", "bob"), 1):
        story.tell(JobSubmitted(job=number, owner=owner, spec=spec(f"job {number}")))
    story.tell(JobStarted(job=1, attempt=1, generation=1, slots=("lab:0", "lab:1")))
    status = story.model.status()
    assert (status.free, status.capacity, status.running, status.waiting, status.ended) == (2, 4, 1, 1, [])
    story.tell(SlotsReleased(job=1, attempt=1, slots=("lab:0", "lab:1")))
    story.tell(JobEnded(job=1, outcome="completed"), JobEnded(job=3, outcome="failed"))
    status = story.model.status()
    assert [(row.job, row.name, row.outcome) for row in status.ended] == [(1, "job 1", "completed")]
    assert status.ended[0].started_at is not None
    assert (status.free, status.running, status.waiting) == (4, 0, 1)
    for number in range(4, 5004):  # of thousands that end some are remembered
        story.tell(JobSubmitted(job=number, owner="ann", spec=spec()), JobEnded(job=number, outcome="completed"))
    assert [row.job for row in story.model.status().ended] == list(range(4994, 5004))
    assert story.screen().total_jobs == 1


def test_another_machine_says_how_it_is_reached_when_it_ends_and_why_it_is_out() -> None:
    story = Story(slots=1)
    other = Host(
        name="lab2",
        kind="cpu",
        slots=(Slot(index=0, out="silent for 5 s"), Slot(index=1, out="silent for 5 s")),
        url="slurm://7/lab2",
        until=5000.0,
    )
    story.tell(HostsChanged(hosts=(Host(name="lab", kind="cpu", slots=(Slot(index=0),)), other)))
    here, there = story.screen().hosts
    assert (here.url, here.until, here.out) == ("", None, "")
    assert (there.url, there.until, there.out) == ("slurm://7/lab2", 5000.0, "silent for 5 s")
    line = next(line for line in text(story.screen()) if line.startswith("lab2"))
    assert line.startswith("lab2 [x] [x] slurm://7/lab2 · ends 01-01 ")
    assert line.endswith(" · out: silent for 5 s")
    as_answered = other_machines((other,), "me")
    begun = PoolModel(slots=list(story.model.slots.values()), others=as_answered)
    assert begun.screen(story.now).hosts[1] == there


def test_who_can_not_get_to_a_host_reads_why_and_the_others_do_not() -> None:
    other = Host(name="lab2", kind="cpu", slots=(Slot(index=0),), url="ssh://lab2", unreachable={"ann": "no key"})
    story = Story(slots=1)
    story.tell(HostsChanged(hosts=(other,)))
    slots = list(story.model.slots.values())
    seen = {user: PoolModel(slots=slots, others=other_machines((other,), user), user=user) for user in ("ann", "bob")}
    assert [model.hosts()[0].out for model in seen.values()] == ["you can't reach it: no key", ""]
    for model in seen.values():  # as events tell it
        model.others = {}
        model.fold(Event(seq=model.seq + 1, at=1.0, by="", cause="", data=HostsChanged(hosts=(other,))))
    assert [model.hosts()[0].out for model in seen.values()] == ["you can't reach it: no key", ""]


def text(screen: PoolScreen) -> list[str]:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal.picture(screen, width=200))
    return console.export_text().splitlines()
