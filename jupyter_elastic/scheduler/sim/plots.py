"""Draw a comparison: slots by job over time (Gantt), and the distribution of turnaround (CDF).

Knows finished runs and matplotlib, which is imported when a picture is wanted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from jupyter_elastic.scheduler.sim.schedule_metrics import SimulatedRun
from jupyter_elastic.types.errors import BadRequest

COLOURS = ("#3b6fb6", "#e07b39", "#4a9d6e", "#b6486f", "#8a63b5", "#c2a53a", "#4aa3b8", "#7a7a7a")
INK, PALE = "#2b2b2b", "#d9d9d9"
ROWS = 45
"""Maximum number of jobs with a row each; more jobs are shown on the slots that they hold."""
MODELS = 16
"""Maximum number of models that the legend names."""
TICKS = (1, 3, 10, 30, 60, 180, 600, 1800, 3600, 3 * 3600, 10 * 3600, 86_400, 3 * 86_400, 10 * 86_400)
_Box: TypeAlias = list[tuple[float, float]]
_Shade: TypeAlias = tuple[str, float]
"""(colour, opacity)."""


def draw(runs: Sequence[SimulatedRun], path: Path | None = None, *, title: str = "") -> Any:
    """Draw some runs, one Gantt a policy above one CDF of turnaround; save the figure if a path is given."""
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
    models = sorted({timeline.model for run in runs for timeline in run.timelines})
    colour = {model: COLOURS[index % len(COLOURS)] for index, model in enumerate(models)}
    first = None
    for index, run in enumerate(runs):
        axes = figure.add_subplot(grid[index, 0], sharex=first)
        first = first or axes
        _gantt(axes, run, unit, colour)
        axes.tick_params(labelbottom=index == len(runs) - 1)
    assert first is not None
    first.set_xlim(0, max(run.end - run.start for run in runs) / unit * 1.01)
    axes.set_xlabel(f"time since the first submission ({name})", color=INK)
    if 1 < len(models) <= MODELS:
        _legend(figure, colour)
    _cdf(figure.add_subplot(grid[len(runs), 0]), runs)
    if title:
        figure.suptitle(title, color=INK, fontsize=13, x=0.01, ha="left")
    if path is not None:
        try:
            figure.savefig(path, dpi=130)
        except (OSError, ValueError) as problem:
            raise BadRequest(f"the plot can't be written to {path}: {problem}") from problem
    return figure


def _gantt(axes: Any, run: SimulatedRun, unit: float, colour: dict[str, str]) -> None:
    from matplotlib.collections import PolyCollection

    drawn = list(_rows(run, unit, colour) if len(run.timelines) <= ROWS else _lanes(run, unit, colour))
    boxes, shades = [box for box, _ in drawn], [shade for _, shade in drawn]
    axes.add_collection(PolyCollection(boxes, facecolors=shades, edgecolors="white", linewidths=0.25))
    axes.set_ylim(max(top for box in boxes for _, top in box) if boxes else 1.0, 0)
    axes.set_yticks([])
    axes.set_ylabel(run.policy, rotation=0, ha="right", va="center", fontweight="bold", color=INK)
    done = [c.ended - c.submitted for c in run.timelines if c.ended is not None]
    if done:
        note = f"mean turnaround {_span(sum(done) / len(done))},  makespan {_span(run.end - run.start)}"
        axes.set_title(note, loc="right", fontsize=9, color=INK, pad=3)
    _quiet(axes)


def _rows(run: SimulatedRun, unit: float, colour: dict[str, str]) -> Iterator[tuple[_Box, _Shade]]:
    """Yield a row for each job, in order of submission: thin and grey while it waits, stronger with more slots."""
    timelines = sorted(run.timelines, key=lambda timeline: (timeline.submitted, timeline.name))
    most = max((span.slots for timeline in timelines for span in timeline.spans), default=1)
    for row, timeline in enumerate(timelines):
        waits = [timeline.submitted, *(time for span in timeline.spans for time in (span.start, span.end))]
        waits.append(timeline.ended if timeline.ended is not None else run.end)
        for left, right in zip(waits[::2], waits[1::2], strict=True):
            if right > left:
                yield _box(left - run.start, right - run.start, row + 0.42, row + 0.58, unit), (PALE, 1.0)
        for span in timeline.spans:
            shade = colour[timeline.model], 0.35 + 0.65 * (span.slots / most) ** 0.5
            yield _box(span.start - run.start, span.end - run.start, row + 0.06, row + 0.94, unit), shade


def _lanes(run: SimulatedRun, unit: float, colour: dict[str, str]) -> Iterator[tuple[_Box, _Shade]]:
    """Yield a lane for each slot with its jobs. The choice of equal slots is arbitrary: a job's own stay together."""
    spans = sorted((span, index) for index, timeline in enumerate(run.timelines) for span in timeline.spans)
    free, before = set(range(run.capacity)), dict[int, list[int]]()
    ends: list[tuple[float, int, list[int]]] = []
    for span, index in spans:
        while ends and ends[0][0] <= span.start:
            free.update(heapq.heappop(ends)[2])
        mine = [lane for lane in before.get(index, []) if lane in free][: span.slots]
        mine += sorted(free.difference(mine))[: span.slots - len(mine)]
        free.difference_update(mine)
        before[index] = mine
        heapq.heappush(ends, (span.end, index, mine))
        shade = colour[run.timelines[index].model], (1.0, 0.72, 0.5)[index % 3]
        # neighbouring lanes, whose numbers rise as their places do, are one box
        for _, block in groupby(enumerate(sorted(mine)), lambda pair: pair[1] - pair[0]):
            lanes = [lane for _, lane in block]
            yield _box(span.start - run.start, span.end - run.start, lanes[0], lanes[-1] + 1, unit), shade


def _cdf(axes: Any, runs: Sequence[SimulatedRun]) -> None:
    slowest, fastest = 1.0, 1e9
    for index, run in enumerate(runs):
        jcts = [c.ended - c.submitted for c in run.timelines if c.ended is not None]
        if not jcts:
            continue
        line = ("-", "--", ":")[index // len(COLOURS) % 3]
        axes.ecdf(jcts, color=COLOURS[index % len(COLOURS)], lw=1.8, ls=line, label=run.policy)
        slowest, fastest = max(slowest, *jcts), min(fastest, max(min(jcts), 1.0))
    axes.set_xscale("log")
    ticks = [at for at in TICKS if fastest / 2 <= at <= 2 * slowest]
    axes.set_xlim(min([fastest / 1.3, *ticks]), slowest * 1.3)
    axes.set_xticks(ticks, [_span(at) for at in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("turnaround: finish minus first submission", color=INK)
    axes.set_ylabel("share of jobs", color=INK)
    axes.grid(color=PALE, lw=0.6)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _quiet(axes)


def _box(left: float, right: float, low: float, high: float, unit: float) -> _Box:
    return [(left / unit, low), (right / unit, low), (right / unit, high), (left / unit, high)]


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
