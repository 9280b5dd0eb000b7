"""The timeline is a fold: who held which slots when, and where the future is drawn."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from jupyter_elastic.cli import timeline_command
from jupyter_elastic.scheduler.forecast import outlook
from jupyter_elastic.scheduler.forecast.outlook import Eta, JobOutlook, Outlook
from jupyter_elastic.scheduler.sim.simulation import make_policy
from jupyter_elastic.types import (
    AnyEventData,
    Event,
    Host,
    HostsChanged,
    JobEnded,
    JobProgressed,
    JobSpec,
    JobStarted,
    JobSubmitted,
    PolicyUsed,
    Progress,
    RescaleRequested,
    SharesChanged,
    Slot,
    SlotInfo,
    SlotsReleased,
)
from jupyter_elastic.types.texts import has_control
from jupyter_elastic.views import timeline_page
from jupyter_elastic.views.pool_model import PoolModel
from jupyter_elastic.views.timeline_bars import MAX_BARS, Rows, future_bars
from jupyter_elastic.views.timeline_model import TimelineModel
from jupyter_elastic.views.timeline_screen import TimelineLook, job_lines
from tests.unit.scheduler.policies.pool import job, view


class Story:
    """Folds events with rising seq at given times, into the pool's model and the timeline's."""

    def __init__(self, slots: int = 4, hosts: int = 1) -> None:
        names = [f"h{host}:{slot}" for host in range(hosts) for slot in range(slots)]
        self.pool = PoolModel(user="ann", policy="fifo", slots=[SlotInfo(slot=name, state="free") for name in names])
        self.model = TimelineModel(since=0.0)
        self.model.loaded = True
        self.seq = itertools.count(1)

    def tell(self, at: float, *data: AnyEventData) -> None:
        for one in data:
            event = Event(seq=next(self.seq), at=at, by="daemon", cause="", data=one)
            self.pool.fold(event)
            self.model.fold(event)

    def submit(self, at: float, number: int, owner: str = "ann", name: str = "digits") -> None:
        spec = JobSpec(name=name, folder="/x", python="/p", min_slots=1, max_slots=4)
        self.tell(at, JobSubmitted(job=number, owner=owner, spec=spec))

    def start(self, at: float, number: int, *slots: str) -> None:
        self.tell(at, JobStarted(job=number, attempt=1, generation=1, slots=slots))

    def end(self, at: float, number: int, *slots: str, outcome: Any = "completed") -> None:
        self.tell(at, SlotsReleased(job=number, attempt=1, slots=slots), JobEnded(job=number, outcome=outcome))

    def screen(self, now: float, *, ahead: Outlook = Outlook(), made_at: float | None = None, **look: Any) -> Any:  # noqa: B008
        return self.model.screen(self.pool, TimelineLook(**look), now, outlook=ahead, made_at=made_at)


def one_resized() -> Story:
    """Job 1 grows from 2 to 3 slots at 120, shrinks to 1 at 150, whose slots are free at 152, and goes on."""
    story = Story()
    story.submit(100.0, 1)
    story.start(101.0, 1, "h0:0", "h0:1")
    story.tell(120.0, RescaleRequested(job=1, attempt=1, generation=2, slots=("h0:0", "h0:1", "h0:2")))
    story.tell(150.0, RescaleRequested(job=1, attempt=1, generation=3, slots=("h0:0",)))
    story.tell(152.0, SlotsReleased(job=1, attempt=1, slots=("h0:1", "h0:2")))
    return story


def test_a_job_is_a_bar_on_its_slots_that_changes_with_each_resize() -> None:
    screen = one_resized().screen(200.0, past_s=150.0)
    assert [(bar.begin, bar.end, bar.first, bar.rows) for bar in screen.bars] == [
        (101.0, 120.0, 0, 2),
        (120.0, 152.0, 0, 3),
        (152.0, None, 0, 1),
    ]
    (told,) = screen.jobs
    assert (told.job, told.owner, told.mine, told.ended_at) == (1, "ann", True, None)


def test_slots_that_are_no_neighbours_are_bars_of_their_own() -> None:
    story = Story(slots=2, hosts=2)
    story.submit(100.0, 1)
    story.start(100.0, 1, "h0:0", "h1:1", "h1:0")
    story.end(150.0, 1, "h0:0", "h1:0", "h1:1")
    assert [(bar.first, bar.rows) for bar in story.screen(200.0).bars] == [(0, 1), (2, 2)]


def test_a_window_shows_what_was_in_it_and_a_slot_that_is_gone_keeps_its_row() -> None:
    story = Story()
    for number in range(1, 6):
        story.submit(100.0 * number, number)
        story.start(100.0 * number, number, "h0:0")
        story.end(100.0 * number + 50, number, "h0:0")
    assert [bar.job for bar in story.screen(1000.0, at=420.0, past_s=150.0, ahead_s=20.0).bars] == [3, 4]
    new = Host(name="new", kind="cpu", slots=(Slot(index=0, out="broken"),), url="ssh://new", until=900.0)
    story.tell(700.0, HostsChanged(hosts=(new,)))
    screen = story.screen(1000.0, past_s=900.0)
    assert [(host.name, host.gone) for host in screen.hosts] == [("new", False), ("h0", True)]
    assert [(host.url, host.until, host.out) for host in screen.hosts] == [
        ("ssh://new", 900.0, "broken"), ("", None, "")
    ]  # fmt: skip
    assert {bar.first for bar in screen.bars} == {1}


def test_hosts_stand_in_the_order_of_their_numbers() -> None:
    story = Story(hosts=11)
    assert [host.name for host in story.screen(10.0).hosts][-3:] == ["h8", "h9", "h10"]


def test_progress_and_what_was_folded_before_change_nothing() -> None:
    story = one_resized()
    before = story.model.version
    story.tell(160.0, JobProgressed(job=1, attempt=1, progress=Progress(step=3)))
    story.model.fold(Event(seq=2, at=500.0, by="", cause="", data=JobEnded(job=1, outcome="failed")))
    assert story.model.version == before
    assert story.model.jobs[1].ended_at is None


def test_of_thousands_of_short_bars_those_are_drawn_together_that_nobody_could_tell_apart() -> None:
    story = Story(slots=8, hosts=125)
    for number in range(1, 3001):
        at, slot = number * 0.5, f"h{number % 125}:{number % 8}"
        story.submit(at, number)
        story.start(at, number, slot)
        story.end(at + 3.0, number, slot)
    screen = story.screen(1510.0, past_s=1510.0)
    assert len(screen.bars) <= MAX_BARS
    assert sum(bar.count for bar in screen.bars) == 3000
    assert len(screen.hosts) <= 64
    assert sum(len(host.slots) for host in screen.hosts) == 1000
    assert screen.total_finished == 3000
    assert len(screen.finished) == 25
    assert len(msgspec.json.encode(screen)) < 1_000_000


def test_finished_jobs_are_found_by_user_name_state_and_time() -> None:
    story = Story()
    for number, (owner, name, outcome) in enumerate(
        [("ann", "Digits", "completed"), ("bob", "digits 2", "failed"), ("bob", "other", "cancelled")], 1
    ):
        story.submit(100.0 * number, number, owner, name)
        story.start(100.0 * number + 1, number, "h0:0", "h0:1")
        story.end(100.0 * number + 50, number, "h0:0", "h0:1", outcome=outcome)

    def found(**look: Any) -> list[int]:
        return [row.job for row in story.screen(400.0, **{"past_s": 400.0, **look}).finished]

    assert found() == [3, 2, 1]
    assert found(user="bob") == [3, 2]
    assert found(name="DIGITS") == [2, 1]
    assert found(state="failed") == [2]
    assert found(past_s=100.0) == [3]
    assert found(offset=1, limit=1) == [2]
    assert story.screen(400.0, past_s=400.0).finished[1].most == 2


def test_fairness_is_slots_used_against_the_share_of_those_who_are_there() -> None:
    story = Story()
    story.tell(0.0, HostsChanged(hosts=(Host(name="h0", kind="cpu", slots=tuple(Slot(index=i) for i in range(4))),)))
    story.submit(100.0, 1, "ann")
    story.start(100.0, 1, "h0:0", "h0:1", "h0:2")
    story.submit(160.0, 2, "bob")
    ann, bob = story.screen(220.0, past_s=120.0).fairness
    assert [row.user for row in (ann, bob)] == ["ann", "bob"]
    assert (ann.points[10][1:], ann.points[-5][1:]) == ((3.0, 4.0), (3.0, 2.0))
    assert (bob.points[10][1:], bob.points[-5][1:]) == ((0.0, 0.0), (0.0, 2.0))
    story.tell(161.0, SharesChanged(weights={"bob": 3.0}))
    assert story.screen(220.0, past_s=120.0).fairness[1].points[-5][2] == 3.0


def test_the_future_goes_on_where_a_job_is_and_takes_what_comes_free() -> None:
    found = outlook.outlook(view(4, job(1, 2, 2, on=2), job(2, 1, 1, on=1), job(3, 2, 2)), make_policy("fifo"))
    rows = Rows({f"h:{n}": SlotInfo(slot=f"h:{n}", state="free") for n in range(4)})
    bars = future_bars(rows, found, {1: ("h:1", "h:2"), 2: ("h:0",)}, 1000.0, 1e9)
    first = [bar for bar in bars if bar.begin == 1000.0]
    assert {(bar.job, bar.first, bar.rows) for bar in first} == {(1, 1, 2), (2, 0, 1)}
    (third, *_) = (bar for bar in bars if bar.job == 3)
    assert third.begin >= min(bar.end or 0.0 for bar in first)
    taken = [(bar.first + row, bar.begin, bar.end) for bar in bars for row in range(bar.rows)]
    for one, other in itertools.combinations(taken, 2):
        assert one[0] != other[0] or one[2] <= other[1] or other[2] <= one[1]  # type: ignore[operator]


def test_an_end_has_a_range_and_a_start_that_of_the_waits() -> None:
    seen = view(1, job(1, 1, 1, on=1), job(2, 1, 1))
    policy = make_policy("fifo")
    found = outlook.outlook(seen, policy)
    by_job = {one.job: one for one in found.jobs}
    (wait,) = outlook.waits(seen, policy)
    assert by_job[2].start == wait
    assert by_job[1].start is None
    for one in found.jobs:
        assert one.end is not None
        assert one.end.low_s <= one.end.guess_s <= one.end.high_s


def ahead(number: int = 1) -> Outlook:
    eta = Eta(job=number, guess_s=60.0, low_s=40.0, high_s=90.0, possible=(40.0, 90.0))
    return Outlook(jobs=(JobOutlook(job=number, end=eta, sizes=((0.0, 1), (30.0, 2))),))


def test_now_divides_what_was_from_what_will_be() -> None:
    screen = one_resized().screen(200.0, ahead=ahead(), made_at=198.0)
    assert [(bar.begin, bar.end, bar.rows) for bar in screen.future] == [(198.0, 228.0, 1), (228.0, 258.0, 2)]
    assert screen.jobs[0].ends == (238.0, 288.0)
    past = one_resized().screen(1000.0, at=200.0, past_s=100.0, ahead_s=50.0, ahead=ahead(), made_at=998.0)
    assert (past.future, past.predicted_at, past.jobs[0].ends) == ([], None, None)  # all of it is over


def test_a_start_of_which_nothing_is_known_is_said_so() -> None:
    story = one_resized()
    story.submit(160.0, 2)
    weeks = Eta(job=2, guess_s=600.0, low_s=0.0, high_s=27 * 86_400.0, possible=(0.0, 900.0))
    soon = msgspec.structs.replace(
        ahead().jobs[0], start=Eta(job=1, guess_s=1.0, low_s=0.5, high_s=2.0, possible=(0.5, 2.0))
    )
    narrow = Eta(job=2, guess_s=700.0, low_s=600.0, high_s=900.0, possible=(600.0, 900.0))
    assert weeks.vague
    assert not narrow.vague
    future = Outlook(jobs=(soon, JobOutlook(job=2, start=weeks, end=narrow)))
    job = next(one for one in story.screen(200.0, ahead=future, made_at=200.0).jobs if one.job == 2)
    assert (job.state, job.starts, job.ends) == ("start not known yet, 1 job before it", None, None)


def test_the_lines_say_when_unfinished_jobs_start_and_end() -> None:
    story = one_resized()
    story.submit(160.0, 2)
    by_number = sorted(job_lines(story.screen(200.0, ahead=ahead(), made_at=200.0)))
    assert by_number == ["job 1 digits (ann): rescaling, ends in about 1 to 2 min", "job 2 digits (ann): queued"]
    story.end(210.0, 1, "h0:0")
    assert job_lines(story.screen(220.0)) == ["job 2 digits (ann): queued"]


def test_html_and_lines_show_names_as_text() -> None:
    story = Story()
    story.submit(100.0, 1, "a\x1b]0;t\x07", "<script>x\x1b[2J</script>")
    story.start(101.0, 1, "h0:0")
    screen = story.screen(200.0, ahead=ahead(), made_at=200.0)
    page = timeline_page.html(screen)
    assert "<script" not in page
    assert "job 1" in page
    assert ">now<" in page
    (line,) = job_lines(screen)
    assert not has_control(line)
    assert timeline_command.text(screen) == line


def test_an_empty_pool_has_a_timeline_too() -> None:
    screen = TimelineModel(since=0.0).screen(PoolModel(), TimelineLook(), 100.0, outlook=Outlook(), made_at=None)
    assert (screen.bars, screen.hosts, screen.jobs) == ([], [], [])
    timeline_page.html(screen)
    assert timeline_command.text(screen) == "no job runs or waits"


def test_a_switch_of_the_policy_is_marked() -> None:
    story = one_resized()
    story.tell(170.0, PolicyUsed(name="srtf", previous="fifo"))
    screen = story.screen(200.0)
    assert [(switch.name, switch.previous) for switch in screen.switches] == [("srtf", "fifo")]
    assert ">srtf<" in timeline_page.html(screen)


@pytest.mark.parametrize("look", [{"past_s": 1e12}, {"past_s": -1.0}, {"at": -5.0}, {"limit": 9999}, {"what": 1}])
def test_a_look_that_makes_no_sense_is_refused(look: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(look, TimelineLook)
