"""Usage is what the journal says, counted in another way: who held, borrowed and lent how much between two events."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.scheduler.journal.queries import UsageQuery
from jupyter_elastic.scheduler.journal.restore import restore, save_snapshot
from jupyter_elastic.scheduler.journal.slot_usage import Usage
from jupyter_elastic.types import (
    Event,
    HostsChanged,
    JobEnded,
    JobSpec,
    JobStarted,
    JobSubmitted,
    RescaleRequested,
    SharesChanged,
    SlotsReleased,
    UseShares,
)
from tests.support.harness import host
from tests.support.histories import FOR_SERVERS, World

DAY_S = 86_400.0
GROUPS = {"vision": ("ann", "bob", "zoe"), "speech": ("max",), "empty": ()}
SHARES: tuple[dict[str, Any], ...] = (
    {"weights": {}, "quotas": {}, "groups": {}},
    {"weights": {"eve": 3.0, "vision": 2.0, "bob": 0.5}, "quotas": {}, "groups": GROUPS},
    {"weights": {"bob": 2.0}, "quotas": {"vision": 3, "bob": 2, "eve": 1, "speech": 2}, "groups": GROUPS},
    {"weights": {"eve": 9.0}, "quotas": {"vision": 9, "zoe": 4, "eve2": 5, "empty": 1}, "groups": GROUPS},
)
"""What the file of shares says, in turn; also quotas that are more than there is, and of who is never there."""

Row = tuple[str, str, str]
Figures = tuple[float, float, float]


def parts(total: float, weights: dict[Any, float], quotas: dict[Any, float]) -> dict[Any, float]:
    """Who is there (has a weight) is at a level that is found by trying; a quota is a part at least."""
    promised = sum(quotas.values())
    quotas = {name: quota * min(1.0, total / promised) for name, quota in quotas.items()}
    rest = total - sum(quota for name, quota in quotas.items() if name not in weights)
    low, high = 0.0, 1e9
    for _ in range(200):
        level = (low + high) / 2
        wanted = sum(max(quotas.get(name, 0.0), level * weight) for name, weight in weights.items())
        low, high = (level, high) if wanted < rest else (low, level)
    return {**quotas, **{name: max(quotas.get(name, 0.0), high * weight) for name, weight in weights.items()}}


def due(capacity: int, there: set[tuple[str, str]], shares: SharesChanged) -> dict[tuple[str, str], float]:
    """Slots by (user, group)."""
    weight, quota = shares.weights.get, shares.quotas.get
    tops = {("group", group) if group else ("user", user) for user, group in there}
    quotas = {}
    for name in shares.quotas:
        if name in shares.groups:
            quotas["group", name] = float(shares.quotas[name])
        elif not any(name in members for members in shares.groups.values()):
            quotas["user", name] = float(shares.quotas[name])
    found = {}
    for (kind, name), slots in parts(capacity, {top: weight(top[1], 1.0) for top in tops}, quotas).items():
        if kind == "user":
            found[name, ""] = slots
            continue
        users = {user for user, group in there if group == name}
        own = {user: float(quota(user, 0)) for user in {*shares.groups.get(name, ()), *users} if quota(user, 0)}
        within = parts(slots, {user: weight(user, 1.0) for user in users}, own)
        found.update({(user, name): part for user, part in within.items()})
        found["", name] = slots - sum(within.values())
    return found


def independent(events: list[Event], now: float) -> dict[Row, Figures]:  # noqa: C901
    """Slot-seconds held, borrowed and lent by (day, user, group): moment after moment, each slot for its holder."""
    jobs: dict[int, tuple[str, str]] = {}
    unfinished: set[int] = set()
    holders: dict[str, int] = {}
    capacity, shares = 0, SharesChanged()
    sums: defaultdict[Row, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    midnights = {DAY_S * day for day in range(int(events[0].at // DAY_S), int(now // DAY_S) + 1)}
    moments = sorted({event.at for event in events} | {now} | {at for at in midnights if at > events[0].at})
    waiting = iter([*events, None])
    event = next(waiting)
    for at, until in zip(moments, [*moments[1:], now], strict=True):
        while event is not None and event.at <= at:
            data = event.data
            if isinstance(data, JobSubmitted):
                jobs[data.job] = (data.owner, data.spec.group)
                unfinished.add(data.job)
            elif isinstance(data, JobEnded):
                unfinished.discard(data.job)
            elif isinstance(data, JobStarted | RescaleRequested):
                holders.update(dict.fromkeys([s for s in data.slots if not s.endswith(FOR_SERVERS)], data.job))
            elif isinstance(data, SlotsReleased):
                for slot in data.slots:
                    holders.pop(slot, None)
            elif isinstance(data, HostsChanged):
                capacity = sum(slot.out == "" and not slot.for_servers for host in data.hosts for slot in host.slots)
            elif isinstance(data, SharesChanged):
                shares = data
            event = next(waiting)
        if not holders or until == at:
            continue
        day = datetime.fromtimestamp(at, UTC).date().isoformat()
        held = Counter(jobs[job] for job in holders.values())
        entitled = due(capacity, {jobs[job] for job in unfinished}, shares)
        accounts = {*held, *entitled}
        more = {who: max(held[who] - entitled.get(who, 0.0), 0.0) for who in accounts}
        less = {who: max(entitled.get(who, 0.0) - held[who], 0.0) for who in accounts}
        part = min(1.0, sum(more.values()) / sum(less.values())) if sum(less.values()) > 1e-6 else 0.0
        for who in accounts:
            for which, slots in enumerate((held[who], more[who], part * less[who])):
                sums[day, *who][which] += slots * (until - at)
    return {row: (found[0], found[1], found[2]) for row, found in sums.items() if max(found) > 0.01}


def a_day(seed: int, steps: int) -> list[Event]:
    """A day and a half of random load on a pool: starts, shrinks, drains, kills, hosts that go, shares that change.

    In its midst a user gets another name, and a group.
    """
    world, random = World(seed), Random(seed)
    for _ in range(steps // 25):
        world.play(25)
        if random.random() < 0.15:
            world.step(UseShares, **random.choice(SHARES))
    begin, end = world.events[0].at, world.events[-1].at
    middle = (begin + end) / 2

    def named(event: Event) -> Event:
        data = event.data
        if isinstance(data, JobSubmitted):
            owner = "eve2" if data.owner == "eve" and event.at > middle else data.owner
            group = "vision" if owner in {"ann", "bob"} else "speech" if owner == "eve2" and data.job % 2 else ""
            event = replace(event, data=replace(data, owner=owner, spec=replace(data.spec, group=group)))
        at = 20_000 * DAY_S + 70_000 + (event.at - begin) * 1.5 * DAY_S / (end - begin)
        return replace(event, at=at)

    return [named(event) for event in world.events]


def rows(book: UsageQuery, now: float, since: float = 0.0) -> dict[Row, Figures]:
    found = asyncio.run(_rows(book, now, since))
    assert len(found) == len({row[:3] for row in found})
    return {(day, user, group): figures for day, user, group, figures in found if max(figures) > 0.01}


async def _rows(book: UsageQuery, now: float, since: float) -> list[tuple[str, str, str, Figures]]:
    return [
        (row.day, row.user, row.group, (row.slot_s, row.borrowed_s, row.lent_s)) for row in await book.rows(since, now)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_over_a_day_it_equals_an_independent_fold_to_the_second_also_after_a_restart(seed: int, tmp_path: Path) -> None:
    events = a_day(seed, 8000 if seed == 0 else 400)
    now = events[-1].at + 3000
    expected = independent(events, now)
    if seed == 0:
        assert len({day for day, _, _ in expected}) >= 2
        assert len(events) > 3000
        kinds = {type(event.data).__name__ for event in events}
        assert {"JobRequeued", "StopRequested", "JobResized", "HostsChanged", "SharesChanged", "JobEnded"} <= kinds
        assert sum(figures[1] for figures in expected.values()) > 3600, "nothing was borrowed"
    journal = Journal(tmp_path / "journal")
    book = UsageQuery(journal)
    for first in range(0, len(events), 500):
        journal.append(events[first : first + 500])
        rows(book, events[min(first + 500, len(events)) - 1].at + 1e5)  # what is asked meanwhile changes nothing

    def same(found: dict[Row, Figures]) -> None:
        assert found.keys() == expected.keys()
        for row, figures in expected.items():
            assert found[row] == pytest.approx(figures, abs=0.5), row

    same(rows(book, now))
    same(rows(book, now))
    last = max(day for day, _, _ in expected)
    assert {day for day, _, _ in rows(book, now, since=now)} <= {last}
    core, _ = restore(journal)
    assert save_snapshot(journal, core)
    journal.close()
    again = Journal(tmp_path / "journal")
    core, read = restore(again)
    assert (read, core.state.seq) == (0, len(events)), "it begins with the snapshot"
    same(rows(UsageQuery(again), now))
    again.close()


# --- by hand ----------------------------------------------------------------------------------------------------------


class Ledger:
    """A pool of eight slots, told event by event, with an hour between them."""

    def __init__(self, **shares: Any) -> None:
        self.usage = Usage()
        self.at = 0.0
        self.seq = 0
        self.free = [f"a:{number}" for number in range(8)]
        self.has: dict[int, list[str]] = {}
        self.tell(HostsChanged(hosts=(host("a", 8),)))
        if shares:
            self.tell(SharesChanged(**{"groups": GROUPS, **shares}))

    def tell(self, data: Any) -> None:
        self.seq += 1
        self.usage.take(Event(seq=self.seq, at=self.at, by="x", cause="x", data=data))

    def job(self, number: int, user: str, slots: int, group: str = "") -> None:
        spec = JobSpec(name="n", folder="/x", python="p", min_slots=1, max_slots=8, group=group)
        self.tell(JobSubmitted(job=number, owner=user, spec=spec))
        if slots:
            self.has[number], self.free = self.free[:slots], self.free[slots:]
            self.tell(JobStarted(job=number, attempt=1, generation=1, slots=tuple(self.has[number])))

    def gives(self, number: int, slots: int) -> None:
        gone, self.has[number] = self.has[number][:slots], self.has[number][slots:]
        self.free += gone
        self.tell(SlotsReleased(job=number, attempt=1, slots=tuple(gone)))

    def hours(self, hours: float = 1.0) -> dict[tuple[str, str], Figures]:
        """After so many hours: what each has held, borrowed and lent, in slot-hours."""
        self.at += 3600 * hours
        found = self.usage.rows(0.0, self.at)
        return {(row.user, row.group): (row.slot_s / 3600, row.borrowed_s / 3600, row.lent_s / 3600) for row in found}


def test_who_is_alone_borrows_of_nobody() -> None:
    pool = Ledger()
    pool.job(1, "ada", 8)
    assert pool.hours() == {("ada", ""): (8.0, 0.0, 0.0)}


def test_who_holds_more_than_an_equal_share_borrows_of_who_is_there_and_uses_less() -> None:
    pool = Ledger()
    pool.job(1, "ada", 6)
    pool.job(2, "bob", 1)  # one slot is nobody's
    assert pool.hours() == {("ada", ""): (6.0, 2.0, 0.0), ("bob", ""): (1.0, 0.0, 2.0)}


def test_a_quota_whose_owner_is_away_is_lent_and_one_that_nobody_needs_is_not() -> None:
    pool = Ledger(quotas={"vision": 4}, weights={})
    pool.job(1, "max", 4)
    assert pool.hours() == {("max", ""): (4.0, 0.0, 0.0)}
    pool.job(2, "max", 3)
    found = pool.hours()
    assert found == {("max", ""): (11.0, 3.0, 0.0), ("", "vision"): (0.0, 0.0, 3.0)}, "one slot is free: lent are three"
    pool.job(3, "ann", 1, group="vision")
    found = pool.hours()
    assert found["max", ""] == (18.0, 6.0, 0.0)
    assert found["ann", "vision"] == (1.0, 0.0, 3.0), "she is there: what her group lends is hers"


def test_lenders_lend_in_proportion_to_what_they_leave_and_in_sum_what_is_borrowed() -> None:
    pool = Ledger(quotas={"vision": 4, "speech": 2})
    pool.job(1, "eve", 5)
    assert pool.hours() == {
        ("eve", ""): (5.0, 3.0, 0.0),
        ("", "vision"): (0.0, 0.0, 2.0),
        ("", "speech"): (0.0, 0.0, 1.0),
    }


def test_quotas_that_are_more_than_there_is_count_in_proportion() -> None:
    pool = Ledger(quotas={"vision": 12, "speech": 4})
    pool.job(1, "max", 8, group="speech")
    assert pool.hours() == {("max", "speech"): (8.0, 6.0, 0.0), ("", "vision"): (0.0, 0.0, 6.0)}


def test_members_share_what_is_their_groups_by_weight() -> None:
    pool = Ledger(weights={"vision": 3.0, "ann": 2.0}, quotas={})
    pool.job(1, "ann", 1, group="vision")
    pool.job(2, "bob", 5, group="vision")
    pool.job(3, "eve", 2)
    assert pool.hours() == {
        ("ann", "vision"): (1.0, 0.0, 3.0), ("bob", "vision"): (5.0, 3.0, 0.0), ("eve", ""): (2.0, 0.0, 0.0),
    }  # fmt: skip


def test_a_slot_counts_from_its_lease_until_it_is_free_and_once() -> None:
    usage = Usage()
    spec = JobSpec(name="n", folder="/x", python="p", min_slots=1, max_slots=2, group="vision")
    happened = [
        (0.0, HostsChanged(hosts=(host("a", 2),))),
        (0.0, JobSubmitted(job=1, owner="ada", spec=spec)),
        (DAY_S - 10, JobStarted(job=1, attempt=1, generation=1, slots=("a:0",))),
        (DAY_S + 20, RescaleRequested(job=1, attempt=1, generation=2, slots=("a:0", "a:1"))),
        (DAY_S + 30, SlotsReleased(job=1, attempt=1, slots=("a:0",))),
    ]
    for seq, (at, data) in enumerate(happened, 1):
        usage.take(Event(seq=seq, at=at, by="x", cause="x", data=data))
    found = usage.rows(0.0, DAY_S + 35)
    assert [(row.day, row.user, row.group, row.slot_s, row.borrowed_s) for row in found] == [
        ("1970-01-01", "ada", "vision", 10.0, 0.0),
        ("1970-01-02", "ada", "vision", 30.0 + 15.0, 0.0),
    ]
    assert [row.day for row in usage.rows(DAY_S, DAY_S + 35)] == ["1970-01-02"]
