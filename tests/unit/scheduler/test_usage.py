"""Usage is what the journal says, counted in another way: how many slots each user held between any two events."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_elastic.scheduler.journal import Journal
from jupyter_elastic.scheduler.usage import DAY_S, Usage, UsageBook
from jupyter_elastic.types import Event, JobSpec, JobStarted, JobSubmitted, RescaleRequested, SlotsReleased
from tests.support.histories import World


def independent(events: list[Event], now: float) -> dict[tuple[str, str, str], float]:
    """Slot-seconds by (day, user, group): at each moment every slot that is held counts for its holder."""
    from datetime import UTC, datetime

    jobs, held = {}, {}
    used: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    moments = sorted({event.at for event in events} | {now} | {DAY_S * day for day in range(int(now // DAY_S) + 1)})
    waiting = iter([*events, None])
    event = next(waiting)
    for at, until in zip(moments, [*moments[1:], now], strict=True):
        while event is not None and event.at <= at:
            data = event.data
            if isinstance(data, JobSubmitted):
                jobs[data.job] = (data.owner, data.spec.group)
            elif isinstance(data, JobStarted | RescaleRequested):
                held.update(dict.fromkeys(data.slots, data.job))
            elif isinstance(data, SlotsReleased):
                for slot in data.slots:
                    held.pop(slot, None)
            event = next(waiting)
        day = datetime.fromtimestamp(at, UTC).date().isoformat()
        for job, slots in Counter(held.values()).items():
            used[day, *jobs[job]] += slots * (until - at)
    return {key: seconds for key, seconds in used.items() if seconds > 0}


@pytest.mark.parametrize("seed", range(15))
def test_it_equals_an_independent_fold_of_a_random_history(seed: int, tmp_path: Path) -> None:
    world = World(seed)
    world.play(250)
    events = [replace(event, at=event.at * 8000) for event in world.events]  # some days
    now = events[-1].at + 3000
    expected = independent(events, now)
    assert expected
    journal = Journal(tmp_path / "journal")
    book = UsageBook(journal)

    async def ask(since: float = 0.0) -> dict[tuple[str, str, str], float]:
        return {(row.day, row.user, row.group): row.slot_s for row in await book.rows(since, now)}

    async def asked_now_and_then() -> dict[tuple[str, str, str], float]:
        for first in range(0, len(events), 100):
            journal.append(events[first : first + 100])
            await ask()
        assert await ask() == await ask(), "what is held is not counted twice"
        last = max(day for day, _, _ in expected)
        assert {day for day, _, _ in await ask(since=now)} <= {last}
        return await ask()

    assert asyncio.run(asked_now_and_then()) == pytest.approx(expected)
    journal.close()


def test_a_slot_counts_from_its_lease_until_it_is_free_and_once() -> None:
    usage = Usage()
    spec = JobSpec(name="n", folder="/x", python="p", min_slots=1, max_slots=2, group="vision")
    happened = [
        (0.0, JobSubmitted(job=1, owner="ada", spec=spec)),
        (DAY_S - 10, JobStarted(job=1, attempt=1, generation=1, slots=("a:0",))),
        (DAY_S + 20, RescaleRequested(job=1, attempt=1, generation=2, slots=("a:0", "a:1"))),
        (DAY_S + 30, SlotsReleased(job=1, attempt=1, slots=("a:0",))),
    ]
    for seq, (at, data) in enumerate(happened, 1):
        usage.take(Event(seq=seq, at=at, by="x", cause="x", data=data))
    rows = usage.rows(0.0, DAY_S + 35)
    assert [(row.day, row.user, row.group, row.slot_s) for row in rows] == [
        ("1970-01-01", "ada", "vision", 10.0),
        ("1970-01-02", "ada", "vision", 30.0 + 15.0),
    ]
    assert [row.day for row in usage.rows(DAY_S, DAY_S + 35)] == ["1970-01-02"]
