"""Renders a job as self-contained HTML and as plain text, for tools without widgets and for files that are kept.

Screen and output in, text out; of this machine it knows the time zone. No script, no network, everything escaped;
Jupyter's theme variables with fallbacks, so that the page of nbconvert is readable too.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Template

from jupyter_elastic.client.human_times import human_time
from jupyter_elastic.client.job_screen import JobScreen, SizePoint
from jupyter_elastic.types import ENDED

Output = Mapping[str, Sequence[Sequence[str]]]
"""Rank -> lines, as made by `output`."""

_STATIC_LINES = 40
_TEMPLATE: Template = Template(
    Path(__file__).with_name("job.html").read_text(encoding="utf-8"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


def html(screen: JobScreen, output: Output | None = None, *, error: str = "", folder: str = "") -> str:
    """Render the job as one `<div>` by the template `job.html`; a live view of `folder` hides it by its class."""
    ranged = screen.min_slots != screen.max_slots
    return _TEMPLATE.render(
        screen=screen,
        folder=folder,
        wants=f"{screen.min_slots}:{screen.max_slots}" if ranged else screen.max_slots,
        state=_state(screen),
        detail=_detail(screen),
        figures=figures(screen),
        error=error,
        band=_band(screen),
        changes=_changes(screen),
        curves=[(series, *curve_path(series.points, 180, 56)) for series in screen.metrics],
        ranks=[(rank, lines[-_STATIC_LINES:]) for rank, lines in (output or {}).items() if lines],
    )


def text(screen: JobScreen, output: Output | None = None, *, error: str = "") -> str:
    """Render the job in a few lines of text."""
    lines = [f"job {screen.job} {screen.name}: {_state(screen)}"]
    said = (screen.warning, _detail(screen), screen.use.waits if screen.use else "")
    lines += [f"  {line}" for line in said if line]
    if phrases := figures(screen):
        lines.append("  " + ", ".join(phrases))
    held = [slots for slots, _ in itertools.groupby(point.slots for point in screen.sizes)]
    if len(held) > 1:
        lines.append(f"  {screen.unit}s over time: " + " → ".join(map(str, held)))
    lines += [f"  {series.name}: {series.last}" for series in screen.metrics]
    if error:
        lines += ["", error.rstrip()]
    for rank, printed in (output or {}).items():
        if printed:
            lines += [f"[rank {rank}]", *[f"  {line[1]}" for line in printed[-_STATIC_LINES:]]]
    return "\n".join(lines)


def _state(screen: JobScreen) -> str:
    """Return the state, of an unfinished job with its time: these forms are kept."""
    if screen.phase in ENDED:
        return screen.state
    return f"{screen.state}, as of {time.strftime('%H:%M, %d %b %Y', time.localtime(screen.now))}"


def _detail(screen: JobScreen) -> str:
    """Return the state's detail, without the reason of the present size, which is in the list of changes."""
    noted = screen.sizes[-1].reason if screen.sizes else ""
    return "" if screen.detail == noted else screen.detail


def figures(screen: JobScreen) -> list[str]:
    """Return the known numbers, each as a short phrase."""
    phrases = [f"training {screen.training}"] if screen.training > 1 else []
    if screen.fraction is not None and screen.phase != "completed":
        phrases.append(f"{100 * screen.fraction:.0f} %")
    if screen.epoch is not None:
        phrases.append(f"epoch {screen.epoch:.3g}" + (f" of {screen.epochs:.3g}" if screen.epochs is not None else ""))
    if screen.step is not None:
        phrases.append(f"step {screen.step:,}")
    if screen.samples_per_s is not None:
        phrases.append(f"{screen.samples_per_s:,.0f} samples/s")
    if screen.eta_s is not None and screen.eta_s >= 1:  # a late job must not seem to be at its end
        phrases.append(f"about {human_time(screen.eta_s)} left")
    if screen.preemptions:
        phrases.append(f"paused {screen.preemptions} time" + ("s" if screen.preemptions > 1 else ""))
    return phrases


def change(point: SizePoint, before: int) -> str:
    """Describe a change of size: `4 → 2: another user's job started, 0.3 s pause`; else return the event's text."""
    if point.slots == before and point.reason:
        return point.reason
    pause = f", {point.pause_s:.1f} s pause" if point.pause_s >= 0.05 else ""
    return f"{before} → {point.slots}" + (f": {point.reason}" if point.reason else "") + pause


def _band(screen: JobScreen) -> list[tuple[float, float, float]]:
    """Return slots over time as steps in a 600 by 30 box: left edge, width, height. Empty without a change."""
    held = [point.slots for point in screen.sizes if point.slots]
    if len(screen.sizes) < 2 or (screen.phase in ENDED and len(set(held)) < 2):
        return []
    begin, end = screen.sizes[0].at, screen.ended_at or screen.now
    span, most = max(end - begin, 1e-9), max([1, screen.max_slots, *[point.slots for point in screen.sizes]])
    edges = [*[600 * (point.at - begin) / span for point in screen.sizes], 600 * (end - begin) / span]
    return [
        (x, max(0.0, until - x), 30 * point.slots / most)
        for point, (x, until) in zip(screen.sizes, itertools.pairwise(edges), strict=True)
    ]


def _changes(screen: JobScreen) -> list[tuple[str, str]]:
    """Return time and text of the last changes of size between start and end."""
    return [
        (time.strftime("%H:%M:%S", time.localtime(point.at)), change(point, before.slots))
        for before, point in itertools.pairwise(screen.sizes)
        if point.reason not in ENDED
    ][-6:]


def curve_path(points: Sequence[tuple[float, float]], width: float, height: float) -> tuple[str, float, float]:
    """Return a curve's SVG path scaled into a box, its minimum and its maximum; an empty path for a single point."""
    if len(points) < 2:
        return "", 0.0, 0.0
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    dx, dy = (x1 - x0) or 1.0, (y1 - y0) or 1.0
    # Half the difference first: a range beyond what a float holds must not turn into infinity.
    steps = [
        f"{2 + (width - 4) * ((x / 2 - x0 / 2) / (dx / 2)):.1f} "
        f"{height - 2 - (height - 4) * ((y / 2 - y0 / 2) / (y1 / 2 - y0 / 2 or dy / 2)):.1f}"
        for x, y in points
    ]
    return "M" + "L".join(steps), y0, y1
