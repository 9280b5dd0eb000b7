"""Renders the timeline as self-contained HTML, for tools without our front end and for kept files."""

from __future__ import annotations

import time
from pathlib import Path

from jinja2 import Template
from msgspec import Struct

from jupyter_elastic.client.human_times import human_time
from jupyter_elastic.views.timeline_screen import Bar, TimelineScreen, job_lines

PALETTE = ("#1f6fb2", "#7d6000", "#8a4f9e", "#00795f", "#b8336a", "#56666f", "#b84a00", "#2f7d1f")
"""Colours of jobs, by number: white reads well on each, and each stands out on dark and light ground."""
LEFT, WIDTH, HEIGHT = 90, 860, 420
_TEMPLATE: Template = Template(
    Path(__file__).with_name("timeline.html").read_text(encoding="utf-8"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


class _Box(Struct, frozen=True, kw_only=True):
    x: float
    y: float
    width: float
    height: float
    colour: str
    label: str
    title: str
    ahead: bool


def html(screen: TimelineScreen) -> str:
    """Render the timeline as one `<figure>`, without script and network."""
    slots = sum(len(host.slots) for host in screen.hosts)
    row = max(1.0, min(18.0, HEIGHT / max(1, slots)))
    scale = (WIDTH - LEFT) / (screen.end - screen.begin)
    names = {job.job: f"job {job.job} {job.name} ({job.owner})" for job in screen.jobs}

    def box(bar: Bar, begin: float, until: float, ahead: bool) -> _Box:
        first, last = max(bar.begin, begin), until if bar.end is None else min(bar.end, until)
        width = max(0.0, (last - first) * scale)
        label = str(bar.job) if bar.job else f"{bar.count}"
        fits = width > 7 * len(label) + 4 and bar.rows * row >= 10
        return _Box(
            x=LEFT + (first - screen.begin) * scale,
            y=bar.first * row,
            width=width,
            height=bar.rows * row,
            colour=PALETTE[bar.job % len(PALETTE)] if bar.job else "#777777",
            label=label if fits else "",
            title=names.get(bar.job, f"job {bar.job}") if bar.job else f"{bar.count} short ones",
            ahead=ahead,
        )

    boxes = [box(bar, screen.begin, min(screen.at, screen.end), False) for bar in screen.bars]
    boxes += [box(bar, max(screen.at, screen.begin), screen.end, True) for bar in screen.future]
    hosts, first = [], 0
    for host in screen.hosts:
        hosts.append((first * row, len(host.slots) * row, host.name + (" (gone)" if host.gone else "")))
        first += len(host.slots)
    return _TEMPLATE.render(
        boxes=[one for one in boxes if one.width > 0],
        hosts=hosts,
        height=slots * row,
        left=LEFT,
        width=WIDTH,
        now=LEFT + (screen.at - screen.begin) * scale if screen.begin <= screen.at <= screen.end else None,
        switches=[(LEFT + (one.at - screen.begin) * scale, one.name) for one in screen.switches],
        before=human_time(screen.at - screen.begin),
        after=human_time(screen.end - screen.at),
        made=time.strftime("%H:%M:%S, %d %b %Y", time.localtime(screen.at)),
        policy=screen.policy,
        note=screen.note,
        lines=job_lines(screen)[:20],
    )
