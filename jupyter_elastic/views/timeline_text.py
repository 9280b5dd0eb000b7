"""Draws the timeline in a terminal with Rich, and as plain text. Pure: a `TimelineScreen` in, a renderable out."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from jupyter_elastic.client.job_model import human_range, human_time
from jupyter_elastic.types.texts import visible
from jupyter_elastic.views.timeline_screen import Bar, TimelineScreen

COLOURS = ("cyan", "yellow", "magenta", "green", "bright_red", "blue", "bright_yellow", "bright_magenta")
ROWS = 24
"""Number of slots beyond which the rows are hosts."""
_LEVELS = " ▁▂▃▄▅▆▇█"


def picture(screen: TimelineScreen, *, width: int = 80, jobs: int = 12) -> RenderableType:
    """Draw slots as rows, time from left to right; right of the line at now, the most likely future."""
    slots = sum(len(host.slots) for host in screen.hosts)
    names = _names(screen, slots <= ROWS)
    left = min(max(map(len, names), default=0), 24) + 1
    grid = _Grid(screen, max(20, min(width - left - 1, 160)))
    lines = grid.slots(slots) if slots <= ROWS else grid.hosts()
    parts: list[RenderableType] = [
        Text(f"{visible(name)[: left - 1]:<{left}}").append_text(line) for name, line in zip(names, lines, strict=True)
    ]
    parts.append(Text(" " * left + grid.axis(), style="dim"))
    if not screen.loaded:
        parts.append(Text("the past is being read", style="dim"))
    if screen.note:
        parts.append(Text(visible(screen.note), style="dim"))
    parts += [Text(line) for line in told(screen)[:jobs]]
    return Group(*parts)


def told(screen: TimelineScreen) -> list[str]:
    """Return a line for each unfinished job: its likely start and end."""
    lines = []
    for job in screen.jobs:
        if job.ended_at is not None:
            continue
        parts = [job.state]
        if job.starts is not None:
            parts.append(f"starts in {human_range(job.starts[0] - screen.at, job.starts[1] - screen.at)}")
        if job.ends is not None:
            parts.append(f"ends in {human_range(job.ends[0] - screen.at, job.ends[1] - screen.at)}")
        lines.append(f"job {job.job} {visible(job.name)} ({visible(job.owner)}): {', '.join(parts)}")
    return lines


def _names(screen: TimelineScreen, each: bool) -> list[str]:
    if each:
        return [slot for host in screen.hosts for slot in host.slots]
    return [host.name for host in screen.hosts]


class _Grid:
    """The columns of the picture, each a stretch of time."""

    def __init__(self, screen: TimelineScreen, columns: int) -> None:
        self.screen, self.columns = screen, columns
        self.step = (screen.end - screen.begin) / columns
        self.now = int((screen.at - screen.begin) / self.step)

    def slots(self, count: int) -> list[Text]:
        """Return a line for each slot: a job's number, then its bar."""
        past: list[list[int | None]] = [[None] * self.columns for _ in range(count)]
        ahead: list[list[int | None]] = [[None] * self.columns for _ in range(count)]
        self._fill(past, self.screen.bars, self.screen.begin, self.screen.at)
        self._fill(ahead, self.screen.future, self.screen.at, self.screen.end)
        return [self._line(*pair) for pair in zip(past, ahead, strict=True)]

    def _fill(self, cells: list[list[int | None]], bars: Sequence[Bar], begin: float, end: float) -> None:
        for bar in bars:
            first = max(bar.begin, begin) - self.screen.begin
            last = min(end if bar.end is None else bar.end, end) - self.screen.begin
            for column in range(round(first / self.step), min(max(round(last / self.step), 1), self.columns)):
                for row in range(bar.first, min(bar.first + bar.rows, len(cells))):
                    cells[row][column] = bar.job

    def _line(self, past: list[int | None], ahead: list[int | None]) -> Text:
        line, column = Text(), 0
        while column < self.columns:
            if column == self.now:
                line.append("│", "bold red")
                column += 1
                continue
            cells, fill = (past, "━") if column < self.now else (ahead, "┄")
            until = self.now if column < self.now else self.columns
            last = column
            while last < until and cells[last] == cells[column]:
                last += 1
            line.append_text(_bar(cells[column], last - column, fill))
            column = last
        return line

    def hosts(self) -> list[Text]:
        """Return a line for each host: its number of held slots."""
        lines, first = [], 0
        for host in self.screen.hosts:
            held = [0.0] * self.columns
            for bars, begin, end in (
                (self.screen.bars, self.screen.begin, self.screen.at),
                (self.screen.future, self.screen.at, self.screen.end),
            ):
                for bar in bars:
                    rows = min(bar.first + bar.rows, first + len(host.slots)) - max(bar.first, first)
                    if rows <= 0:
                        continue
                    since = max(bar.begin, begin) - self.screen.begin
                    until = min(end if bar.end is None else bar.end, end) - self.screen.begin
                    for column in range(round(since / self.step), min(round(until / self.step), self.columns)):
                        held[column] += rows
            line = Text()
            for column, slots in enumerate(held):
                level = _LEVELS[min(len(_LEVELS) - 1, round(8 * slots / max(1, len(host.slots))))]
                style = "cyan" if column < self.now else "dim cyan"
                line.append(*(("│", "bold red") if column == self.now else (level, style)))
            lines.append(line)
            first += len(host.slots)
        return lines

    def axis(self) -> str:
        """Return the axis: begin, now, end."""
        screen = self.screen
        before, after = human_time(screen.at - screen.begin), human_time(screen.end - screen.at)
        if not 0 <= self.now < self.columns:  # a window of the past
            ends = [time.strftime("%H:%M:%S", time.localtime(at)) for at in (screen.begin, screen.end)]
            return f"{ends[0]}{ends[1]:>{max(1, self.columns - len(ends[0]))}}"
        left, right = f"{before} ago", f"in {after}"
        line = list(" " * self.columns)
        for at, text in ((0, left), (self.columns - len(right), right), (self.now - 1, "now")):
            line[max(at, 0) : max(at, 0) + len(text)] = text
        return "".join(line)[: self.columns]


def _bar(job: int | None, width: int, fill: str) -> Text:
    if job is None:
        return Text(" " * width)
    number = str(job) if job else "…"
    text = number + fill * (width - len(number)) if width > len(number) else fill * width
    return Text(text, style=COLOURS[job % len(COLOURS)] if job else "dim")
