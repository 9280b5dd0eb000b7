"""Places bars: the timeline's rows, past bars on the slots that jobs held, future bars on likely slots. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jupyter_elastic.scheduler.forecast.outlook import Outlook
from jupyter_elastic.types import JobId, SlotId, SlotInfo
from jupyter_elastic.types.texts import natural
from jupyter_elastic.views.pool_screen import HostBox
from jupyter_elastic.views.timeline_screen import Bar, TimelineHost

MAX_BARS = 1_500
"""Maximum number of bars; beyond that short ones are merged."""
SHARP = 1_000
"""Divisor of the window's length below which a bar is no wider than a pixel or two."""
MAX_HOSTS = 64
"""Maximum number of host names; beyond that several hosts share one."""


@dataclass(frozen=True)
class BarSpan:
    """A period in which a job held the same slots."""

    begin: float
    end: float | None
    """None while the period goes on."""
    slots: frozenset[SlotId]


@dataclass
class JobPast:
    """The history of a job."""

    job: JobId
    owner: str
    group: str
    name: str
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    state: str = "queued"
    reason: str = ""
    spans: list[BarSpan] = field(default_factory=list)
    """Ended periods."""
    held: frozenset[SlotId] = frozenset()
    since: float = 0.0
    """Start of the period with these slots."""
    most: int = 0

    def hold(self, at: float, slots: frozenset[SlotId]) -> None:
        """Record that the job holds these slots from now on."""
        if slots == self.held:
            return
        if self.held and at > self.since:
            self.spans.append(BarSpan(self.since, at, self.held))
        self.held, self.since, self.most = slots, at, max(self.most, len(slots))

    def all_spans(self) -> Iterable[BarSpan]:
        """Yield the ended periods, and the present one."""
        yield from self.spans
        if self.held:
            yield BarSpan(self.since, None, self.held)


class Rows:
    """A row for each slot: the pool's slots in order, then drawn slots that the pool no longer has."""

    def __init__(
        self,
        slots: Mapping[SlotId, SlotInfo],
        drawn: Iterable[frozenset[SlotId]] = (),
        boxes: Iterable[HostBox] = (),
    ) -> None:
        there = sorted(slots, key=lambda name: (slots[name].for_servers, natural(name)))
        by_host: defaultdict[str, list[SlotId]] = defaultdict(list)
        for name in sorted(there, key=lambda name: natural(_host(name))):
            by_host[_host(name)].append(name)
        gone = sorted({name for names in drawn for name in names} - slots.keys(), key=natural)
        lost: defaultdict[str, list[SlotId]] = defaultdict(list)
        for name in gone:
            lost[_host(name)].append(name)
        known = {box.name: box for box in boxes}
        self._hosts = [_timeline_host(name, names, known.get(name)) for name, names in by_host.items()]
        self._hosts += [_timeline_host(name, names, gone=True) for name, names in lost.items()]
        self.order = [name for host in self._hosts for name in host.slots]
        self.place = {name: row for row, name in enumerate(self.order)}
        here = ((name, slots[name]) for name in self.order if name in slots)
        self.usable = [name for name, slot in here if slot.state != "out" and not slot.pinned]

    def hosts(self) -> list[TimelineHost]:
        """Return the hosts beside the rows."""
        step = -(-len(self._hosts) // MAX_HOSTS)
        if step <= 1:
            return self._hosts
        parts = [self._hosts[at : at + step] for at in range(0, len(self._hosts), step)]
        return [
            part[0]
            if len(part) == 1
            else _timeline_host(
                f"{part[0].name} … {part[-1].name}",
                [name for host in part for name in host.slots],
                gone=all(host.gone for host in part),
            )
            for part in parts
        ]

    def runs(self, slots: Iterable[SlotId]) -> list[tuple[int, int]]:
        """Return the rows of these slots as runs of neighbours: first row and number of rows."""
        found: list[tuple[int, int]] = []
        for row in sorted(self.place[slot] for slot in slots if slot in self.place):
            if found and sum(found[-1]) == row:
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((row, 1))
        return found


def _timeline_host(name: str, slots: list[SlotId], box: HostBox | None = None, *, gone: bool = False) -> TimelineHost:
    return TimelineHost(
        name=name,
        slots=slots,
        gone=gone,
        url=box.url if box else "",
        until=box.until if box else None,
        out=box.out if box else "",
    )


def past_bars(rows: Rows, spans: Mapping[JobId, Sequence[BarSpan]], begin: float, end: float) -> list[Bar]:
    """Return the past bars of a window: at most `MAX_BARS`, merging those too short to be seen."""
    bars = [
        Bar(job=job, begin=span.begin, end=span.end, first=first, rows=count)
        for job, held in spans.items()
        for span in held
        for first, count in rows.runs(span.slots)
    ]
    shortest = (end - begin) / SHARP
    while len(bars) > MAX_BARS:
        bars = _together(bars, shortest)
        shortest *= 2
        if shortest > 2 * (end - begin):
            return sorted(bars, key=lambda bar: bar.begin)[-MAX_BARS:]
    return bars


def _together(bars: list[Bar], shortest: float) -> list[Bar]:
    """Merge bars shorter than `shortest` by time and neighbouring rows."""
    kept: list[Bar] = []
    boxes: dict[tuple[int, int], Bar] = {}
    for bar in bars:
        if bar.end is None or bar.end - bar.begin >= shortest:
            kept.append(bar)
            continue
        key = (int(bar.begin / shortest), bar.first // 8)
        box = boxes.get(key)
        if box is None:
            boxes[key] = Bar(job=0, begin=bar.begin, end=bar.end, first=bar.first, rows=bar.rows, count=bar.count)
            continue
        first, last = min(box.first, bar.first), max(box.first + box.rows, bar.first + bar.rows)
        boxes[key] = Bar(
            job=0,
            begin=min(box.begin, bar.begin),
            end=max(box.end or 0.0, bar.end),
            first=first,
            rows=last - first,
            count=box.count + bar.count,
        )
    return [*kept, *boxes.values()]


def future_bars(  # noqa: C901  a case for each kind of bar
    rows: Rows, outlook: Outlook, held: Mapping[JobId, Sequence[SlotId]], made_at: float, until: float
) -> list[Bar]:
    """Return the most likely bars from `made_at` on. Unreserved slots are chosen near those that the job has.

    A bar ends with the best guess; its uncertainty is the job's range.
    """
    there = set(rows.usable)
    mine: dict[JobId, list[SlotId]] = {job: [slot for slot in slots if slot in there] for job, slots in held.items()}
    since: dict[JobId, float] = {}
    moves: list[tuple[float, bool, JobId, int]] = []
    """Time, whether the job grows, job, new number of slots: shrinking comes first, as it makes room for growth."""
    for job in outlook.jobs:
        size, last = 0, job.end.guess_s if job.end is not None else None
        for when, slots in job.sizes:
            if last is None or when < last:
                moves.append((when, slots > size and when > 0, job.job, slots))
                size = slots
        if last is not None:
            moves.append((last, False, job.job, 0))
    for job_id in mine.keys() - {job.job for job in outlook.jobs}:  # a job that is being stopped
        mine[job_id] = []
    found: list[Bar] = []

    def close(job: JobId, at: float) -> None:
        begun = since.pop(job, None)
        if begun is not None and at > begun:
            for first, count in rows.runs(mine[job]):
                found.append(Bar(job=job, begin=made_at + begun, end=made_at + at, first=first, rows=count))

    taken = {slot for slots in mine.values() for slot in slots}
    for when, _, job_id, slots in sorted(moves):
        if made_at + when > until:
            break
        have = mine.setdefault(job_id, [])
        if len(have) == slots and job_id in since:
            continue
        close(job_id, when)
        taken.difference_update(have[slots:])
        del have[slots:]
        if len(have) < slots:
            more = _near(rows, have, taken, slots - len(have))
            have += more
            taken.update(more)
        if slots:
            since[job_id] = when
    for job_id in list(since):
        close(job_id, until - made_at)
    return sorted(found, key=lambda bar: (bar.begin, bar.first))


def _near(rows: Rows, have: Sequence[SlotId], taken: set[SlotId], count: int) -> list[SlotId]:
    """Return free slots: first on the job's hosts, then on the emptiest."""
    mine = {_host(slot) for slot in have}
    free = [slot for slot in rows.usable if slot not in taken]
    room: defaultdict[str, int] = defaultdict(int)
    for slot in free:
        room[_host(slot)] += 1
    return sorted(free, key=lambda slot: (_host(slot) not in mine, -room[_host(slot)], rows.place[slot]))[:count]


def _host(slot: SlotId) -> str:
    return slot.rpartition(":")[0]
