"""A journal that was written before the modules moved and the stimuli got their present names is read as ever."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.scheduler.journal.restore import restore
from jupyter_elastic.types import AgentChanged, Event, PlanRejected, WorkerReplaced
from tests.support.invariants import check

DATA = Path(__file__).parents[2] / "data" / "journal_before_the_moves.sqlite"
"""30 events of 17 kinds: two jobs that grew, shrank, ended or were lost, a policy text, an agent that went."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(Path(shutil.copy(DATA, tmp_path / "journal.sqlite")))
    yield found
    found.close()


def test_an_old_journal_gives_the_state_that_it_was_written_from(journal: Journal) -> None:
    core, read = restore(journal)
    check(core.state)
    assert read == core.state.seq == 30
    assert {job: info.phase for job, info in core.state.jobs.items()} == {2: "queued", 3: "stopping"}
    first = core.state.ended[1]
    assert (first.phase, first.owner, first.spec.max_slots, first.attempt, first.generation) == (
        "completed", "ann", 1, 1, 3,
    )  # fmt: skip
    assert first.progress is not None
    assert (first.progress.step, first.progress.metrics, first.progress.not_finite) == (3, {"loss": 0.5}, ("bad",))
    assert core.state.jobs[2].restarts == 1
    assert (core.state.policy, core.state.policy_source.count("plan(view)")) == ("mine", 1)
    assert core.state.agents == {"ann": False}
    assert core.state.places["ann"].place == "boot:1"
    events = list(journal.replay())
    assert len({type(event.data) for event in events}) == 17
    assert [event.data.reason for event in events if isinstance(event.data, PlanRejected)] == [
        "illegal plan: there is no job 77"
    ]
    assert [event.data.after_s for event in events if isinstance(event.data, WorkerReplaced)] == [0.4]


def test_an_old_journal_is_written_on(journal: Journal) -> None:
    event = Event(seq=31, at=2e9, by="ann", cause="c", data=AgentChanged(user="ann", connected=True))
    journal.append([event])
    assert list(journal.replay(30)) == [event]
    assert restore(journal)[0].state.agents == {"ann": True}
