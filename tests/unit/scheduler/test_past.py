"""The past that a page asks for: from a time on, with the beginning of what was there then, page by page."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.journal import queries
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.scheduler.journal.queries import HistoryQuery
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
    Slot,
    SlotsReleased,
)


def story() -> list[Event]:
    """Job 1 runs from 100 to the end, jobs 2 to 5 for 5 s each at 200, 300, 400 and 500."""
    spec = JobSpec(name="n", folder="/x", python="/p", min_slots=1, max_slots=1)
    told: list[tuple[float, AnyEventData]] = [
        (1.0, HostsChanged(hosts=(Host(name="h", kind="cpu", slots=(Slot(index=0), Slot(index=1))),))),
        (2.0, PolicyUsed(name="own", source="long " * 1000)),
    ]
    for number in range(1, 6):
        at, slots = 100.0 * number, (f"h:{int(number > 1)}",)
        told += [
            (at, JobSubmitted(job=number, owner="ann", spec=spec)),
            (at, JobStarted(job=number, attempt=1, generation=1, slots=slots)),
            (at + 1, JobProgressed(job=number, attempt=1, progress=Progress(step=1))),
        ]
        if number > 1:
            told.append((at + 5, SlotsReleased(job=number, attempt=1, slots=slots)))
            told.append((at + 5, JobEnded(job=number, outcome="completed")))
    return [Event(seq=seq, at=at, by="daemon", cause="", data=data) for seq, (at, data) in enumerate(told, 1)]


@pytest.fixture
def book(tmp_path: Path) -> tuple[HistoryQuery, Core]:
    core, journal = Core(), Journal(tmp_path / "journal")
    journal.append(story())
    for event in story():
        core.fold(event)
    return HistoryQuery(journal), core


def asked(book: tuple[HistoryQuery, Core], since: float, after: int = 0) -> tuple[list[Event], bool]:
    return asyncio.run(book[0].events(book[1].state, since, after))


def test_what_was_there_comes_with_its_beginning_and_without_its_progress(book: tuple[HistoryQuery, Core]) -> None:
    found, more = asked(book, 450.0)
    assert not more
    assert [(event.at, type(event.data).__name__) for event in found[:2]] == [
        (100.0, "JobSubmitted"),
        (100.0, "JobStarted"),
    ]
    assert found[-1].at == 505.0
    assert not any(isinstance(event.data, JobProgressed) for event in found)


def test_it_begins_at_the_time_where_nothing_was_there(book: tuple[HistoryQuery, Core]) -> None:
    del book[1].state.jobs[1]  # as if forgotten
    assert [event.at for event in asked(book, 450.0)[0]] == [500.0, 500.0, 505.0, 505.0]
    assert asked(book, 1e6) == ([], False)


def test_a_long_past_comes_in_pages_and_nothing_twice(
    book: tuple[HistoryQuery, Core], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = asked(book, 0.0)
    monkeypatch.setattr(queries, "PAGE", 5)
    pages, after, more = [], 0, True
    while more:
        page, more = asked(book, 0.0, after)
        assert 0 < len(page) <= 5
        pages += page
        after = page[-1].seq
    assert pages == whole


def test_the_text_of_a_policy_is_not_sent(book: tuple[HistoryQuery, Core]) -> None:
    (used,) = (event.data for event in asked(book, 0.0)[0] if isinstance(event.data, PolicyUsed))
    assert (used.name, used.source) == ("own", "")
