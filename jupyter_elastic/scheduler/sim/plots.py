"""Two pictures of a comparison: who held what when (Gantt), and how turnaround is distributed (CDF).

Knows finished runs and matplotlib, which is imported when a picture is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jupyter_elastic.errors import BadRequest
from jupyter_elastic.scheduler.sim.metrics import Run

COLOURS = ("#3b6fb6", "#e07b39", "#4a9d6e", "#b6486f", "#8a63b5", "#c2a53a", "#4aa3b8", "#7a7a7a")
INK, PALE = "#2b2b2b", "#d9d9d9"
ROWS = 400
"""More jobs than this share rows of the Gantt: one row for each is thinner than a line."""


def draw(runs: Sequence[Run], path: Path | None = None, *, title: str = "") -> Any:
    """The figure of some runs, one Gantt a policy above one CDF of turnaround; saved when a path is given."""
    if not runs:
        raise BadRequest("there is no run to draw")
    try:
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise BadRequest("plots need matplotlib: pip install 'jupyter-elastic[plot]'") from problem
    height = 1.9 * len(runs) + 3.6
    figure = Figure(figsize=(11, height), layout="constrained", facecolor="white")
    grid = figure.add_gridspec(len(runs) + 1, 1, height_ratios=[1.0] * len(runs) + [1.6])
    unit, name = _unit(max(run.end - run.start for run in runs))
    models = sorted({course.model for run in runs for course in run.courses})
    colour = {model: COLOURS[index % len(COLOURS)] for index, model in enumerate(models)}
    first = None
    for index, run in enumerate(runs):
        axes = figure.add_subplot(grid[index, 0], sharex=first)
        first = first or axes
        _gantt(axes, run, unit, colour if len(models) <= len(COLOURS) else None)
        axes.tick_params(labelbottom=index == len(runs) - 1)
    assert first is not None
    first.set_xlim(0, max(run.end - run.start for run in runs) / unit * 1.01)
    axes.set_xlabel(f"time since the first submission ({name})", color=INK)
    if 1 < len(models) <= len(COLOURS):
        _legend(figure, colour)
    _cdf(figure.add_subplot(grid[len(runs), 0]), runs)
    if title:
        figure.suptitle(title, color=INK, fontsize=13, x=0.01, ha="left")
    if path is not None:
        _save(figure, path)
    return figure


def _gantt(axes: Any, run: Run, unit: float, colour: dict[str, str] | None) -> None:
    from matplotlib.collections import PolyCollection

    start = run.start
    courses = sorted(run.courses, key=lambda course: (course.submitted, course.name))
    most = max((span.slots for course in courses for span in course.spans), default=1)
    waits, bars, shades = [], [], []
    step = max(1.0, len(courses) / ROWS)
    for row, course in enumerate(courses):
        y = row / step
        first = course.spans[0].start if course.spans else run.end
        waits.append(_box(course.submitted - start, first - start, y, 0.12, unit))
        for before, after in zip(course.spans, course.spans[1:], strict=False):
            if after.start > before.end:
                waits.append(_box(before.end - start, after.start - start, y, 0.12, unit))
        for span in course.spans:
            bars.append(_box(span.start - start, span.end - start, y, 0.86, unit))
            shades.append(_shade(colour[course.model] if colour else COLOURS[0], span.slots / most))
    axes.add_collection(PolyCollection(waits, facecolors=PALE, edgecolors="none"))
    axes.add_collection(PolyCollection(bars, facecolors=shades, edgecolors="none"))
    axes.set_ylim(max(1.0, len(courses) / step), -0.5)
    axes.set_yticks([])
    axes.set_ylabel(run.policy, rotation=0, ha="right", va="center", fontweight="bold", color=INK)
    done = [c.ended - c.submitted for c in courses if c.ended is not None]
    if done:
        note = f"mean turnaround {_span(sum(done) / len(done))},  makespan {_span(run.end - start)}"
        axes.set_title(note, loc="right", fontsize=9, color=INK, pad=3)
    _quiet(axes)


def _cdf(axes: Any, runs: Sequence[Run]) -> None:
    slowest = 1.0
    for index, run in enumerate(runs):
        jcts = sorted(c.ended - c.submitted for c in run.courses if c.ended is not None)
        if not jcts:
            continue
        shares = [(place + 1) / len(jcts) for place in range(len(jcts))]
        axes.step(
            [jcts[0], *jcts], [0.0, *shares], where="post", color=COLOURS[index % len(COLOURS)], lw=1.8,
            ls=("-", "--", ":")[index // len(COLOURS) % 3], label=run.policy,
        )  # fmt: skip
        slowest = max(slowest, jcts[-1])
    axes.set_xscale("log")
    ticks = [at for at in (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400) if at <= 2 * slowest]
    axes.set_xticks(ticks, [_span(at) for at in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("turnaround: finish minus first submission", color=INK)
    axes.set_ylabel("share of jobs", color=INK)
    axes.grid(color=PALE, lw=0.6)
    axes.legend(frameon=False, loc="lower right", ncols=min(len(runs), 4))
    _quiet(axes)


def _box(left: float, right: float, row: float, height: float, unit: float) -> list[tuple[float, float]]:
    low, high = row + 0.5 - height / 2, row + 0.5 + height / 2
    return [(left / unit, low), (right / unit, low), (right / unit, high), (left / unit, high)]


def _shade(colour: str, share: float) -> tuple[float, float, float]:
    """The colour, paler on few slots."""
    strength = 0.35 + 0.65 * share**0.5
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (1 - strength * (1 - part) for part in (red, green, blue))
    return red, green, blue


def _legend(figure: Any, colour: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=value, label=model or "job") for model, value in colour.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=9)


def _quiet(axes: Any) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(PALE)
    axes.tick_params(colors=INK, length=0)


def _unit(seconds: float) -> tuple[float, str]:
    if seconds > 4 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds > 300 else (1.0, "seconds")


def _span(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as problem:
        raise BadRequest(f"the plot can't be written to {path}: {problem}") from problem
