"""A job as self-contained HTML and as plain text, for tools without widgets and for files that are kept.

Pure: screen and output in, text out. No script, no network, everything escaped; Jupyter's theme variables with
fallbacks, so that it reads well in nbconvert's page too.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from html import escape

from jupyter_elastic.client.job_model import JobScreen, Series, SizePoint, human_time
from jupyter_elastic.types import ENDED

Output = Mapping[str, Sequence[Sequence[str]]]
"""Rank -> lines, as `output` makes them."""

TONES = {
    "wait": "#8f6a00",
    "run": "#1565c0",
    "change": "#7b3fb5",
    "good": "#1b7f3b",
    "bad": "#c62828",
    "off": "#616161",
}
_TEXT = "var(--jp-ui-font-color1, #212121)"
_QUIET = "var(--jp-ui-font-color2, #616161)"
_LINE = "var(--jp-border-color2, #dcdcdc)"
_BACK = "var(--jp-layout-color1, #fff)"
_SHADE = "var(--jp-layout-color2, #f2f2f2)"
_FONT = "var(--jp-ui-font-family, system-ui, sans-serif)"
_CODE = "var(--jp-code-font-family, ui-monospace, monospace)"
_STATIC_LINES = 40
FRAME = (
    "<style>body{margin:4px;font:13px/1.4 sans-serif;background:#fff;color:#212121}table{border-collapse:collapse}"
    "td,th{padding:2px 8px;text-align:right}</style>"
)
"""What stands before HTML that a rank displays: it is drawn in a frame, dark text on white in every theme."""


def html(screen: JobScreen, output: Output | None = None, *, error: str = "") -> str:
    """The job as one `<div>`; a live view above it hides it by its class."""
    tone = TONES[screen.tone]
    opening = (
        f'<div class="jelastic-static" role="group" aria-label="job {screen.job}" '
        f'style="font:13px/1.45 {_FONT};color:{_TEXT};background:{_BACK};border:1px solid {_LINE};'
        f'border-left:4px solid {tone};border-radius:6px;padding:8px 12px;max-width:860px">'
    )
    parts = [
        opening,
        _head(screen, tone),
        _bar(screen, tone),
        f'<div style="color:{_QUIET}">{escape(" · ".join(figures(screen)))}</div>' if figures(screen) else "",
        _waits(screen),
        _pre(error, "first failing rank", "#c62828") if error else "",
        _band(screen),
        _curves(screen.metrics),
        _outputs(output or {}),
        "</div>",
    ]
    return "".join(parts)


def text(screen: JobScreen, output: Output | None = None, *, error: str = "") -> str:
    """The job in a few lines."""
    lines = [f"job {screen.job} {screen.name}: {_state(screen)}"]
    if screen.detail:
        lines.append(f"  {screen.detail}")
    if screen.use and screen.use.waits:
        lines.append(f"  {screen.use.waits}")
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


def _waits(screen: JobScreen) -> str:
    """Which rank waits for which, if one does."""
    waits = screen.use.waits if screen.use else ""
    return f'<div role="status" style="color:{TONES["bad"]}">{escape(waits)}</div>' if waits else ""


def bundle(screen: JobScreen, output: Output | None = None, *, error: str = "", rank: int = 0) -> dict[str, str]:
    """Both forms by their MIME types. `error` is the traceback of the first failing rank, `rank`."""
    failure = error and f"rank {rank}\n{error}"
    return {"text/html": html(screen, output, error=failure), "text/plain": text(screen, output, error=failure)}


def _state(screen: JobScreen) -> str:
    """What is so, and of a job that goes on when: these forms are kept."""
    if screen.phase in ENDED:
        return screen.state
    return f"{screen.state}, as of {time.strftime('%H:%M, %d %b %Y', time.localtime(screen.now))}"


def figures(screen: JobScreen) -> list[str]:
    """What is known in numbers, each as a short phrase."""
    phrases = []
    if screen.fraction is not None and screen.phase != "completed":
        phrases.append(f"{100 * screen.fraction:.0f} %")
    if screen.epoch is not None:
        phrases.append(f"epoch {screen.epoch:.3g}" + (f" of {screen.epochs:.3g}" if screen.epochs is not None else ""))
    if screen.step is not None:
        phrases.append(f"step {screen.step:,}")
    if screen.samples_per_s is not None:
        phrases.append(f"{screen.samples_per_s:,.0f} samples/s")
    if screen.eta_s is not None:
        phrases.append(f"about {human_time(screen.eta_s)} left")
    if screen.preemptions:
        phrases.append(f"paused {screen.preemptions} time" + ("s" if screen.preemptions > 1 else ""))
    return phrases


def change(point: SizePoint, before: int) -> str:
    """A change of size in words: `4 → 2: another user's job started, 0.3 s pause`; else what happened."""
    if point.slots == before and point.reason:
        return point.reason
    pause = f", {point.pause_s:.1f} s pause" if point.pause_s >= 0.05 else ""
    return f"{before} → {point.slots}" + (f": {point.reason}" if point.reason else "") + pause


def _head(screen: JobScreen, tone: str) -> str:
    many = "" if screen.max_slots == 1 else "s"
    wants = str(screen.max_slots) if screen.min_slots == screen.max_slots else f"{screen.min_slots}:{screen.max_slots}"
    about = f"job {screen.job} · {screen.engine} · {wants} {screen.unit}{many}"
    detail = f'<div style="color:{_QUIET}">{escape(screen.detail)}</div>' if screen.detail else ""
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:0 10px;align-items:baseline"><b>{escape(screen.name)}</b>'
        f'<span style="color:{_QUIET}">{escape(about)}</span>'
        f'<span style="font-weight:600;margin-left:auto"><span style="color:{tone}" aria-hidden="true">●</span> '
        f"{escape(_state(screen))}</span></div>{detail}"
    )


def _bar(screen: JobScreen, tone: str) -> str:
    if screen.fraction is None:
        return ""
    percent = 100 * screen.fraction
    return (
        f'<div role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{percent:.0f}" '
        f'style="height:6px;border-radius:3px;background:{_SHADE};margin:6px 0;overflow:hidden">'
        f'<div style="height:6px;width:{percent:.2f}%;background:{tone}"></div></div>'
    )


def _band(screen: JobScreen) -> str:
    """Slots over time as steps, with the reasons below when there was more than a start and an end."""
    if len(screen.sizes) < 2:
        return ""
    begin, end = screen.sizes[0].at, screen.ended_at or screen.now
    span, most = max(end - begin, 1e-9), max([1, screen.max_slots, *[point.slots for point in screen.sizes]])
    boxes = []
    for point, following in zip(screen.sizes, [*screen.sizes[1:], None], strict=True):
        until = following.at if following is not None else end
        x, width = 600 * (point.at - begin) / span, 600 * max(0.0, until - point.at) / span
        height = 30 * point.slots / most
        boxes.append(f'<rect x="{x:.1f}" y="{32 - height:.1f}" width="{width:.1f}" height="{height:.1f}"/>')
    befores = [0, *[point.slots for point in screen.sizes]]
    rows = [
        f"<div>{time.strftime('%H:%M:%S', time.localtime(point.at))} &nbsp;{escape(change(point, before))}</div>"
        for point, before in zip(screen.sizes[1:], befores[1:], strict=False)
        if point.reason not in ENDED
    ]
    story = f'<div style="color:{_QUIET};font-size:12px">{"".join(rows[-6:])}</div>' if rows else ""
    return (
        f'<svg role="img" aria-label="{screen.unit}s over time" viewBox="0 0 600 33" preserveAspectRatio="none" '
        f'style="display:block;width:100%;height:33px;margin:6px 0;background:{_SHADE};border-radius:3px">'
        f'<g fill="{TONES["run"]}" fill-opacity="0.45">{"".join(boxes)}</g></svg>{story}'
    )


def _curves(metrics: Sequence[Series]) -> str:
    if not metrics:
        return ""
    drawn = "".join(_curve(series) for series in metrics)
    return f'<div style="display:flex;flex-wrap:wrap;gap:10px;margin:6px 0">{drawn}</div>'


def _curve(series: Series) -> str:
    label = (
        f'<div style="display:flex;justify-content:space-between;font-size:12px"><span>{escape(series.name)}</span>'
        f"<b>{escape(series.last)}</b></div>"
    )
    box = f'style="flex:0 1 190px;border:1px solid {_LINE};border-radius:4px;padding:4px 8px"'
    if len(series.points) < 2:
        return f"<div {box}>{label}</div>"
    path, (low, high) = curve_path(series.points, 180, 56)
    return (
        f'<div {box}>{label}<svg role="img" aria-label="{escape(series.name, quote=True)} over time" '
        f'viewBox="0 0 180 56" style="display:block;width:100%;height:56px"><path d="{path}" fill="none" '
        f'stroke="{TONES["run"]}" stroke-width="1.5" stroke-linejoin="round" vector-effect="non-scaling-stroke"/></svg>'
        f'<div style="font-size:11px;color:{_QUIET}">{low:.3g} to {high:.3g}</div></div>'
    )


def curve_path(points: Sequence[tuple[float, float]], width: float, height: float) -> tuple[str, tuple[float, float]]:
    """SVG path of a curve scaled into a box, and the least and the highest value."""
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    dx, dy = (x1 - x0) or 1.0, (y1 - y0) or 1.0
    # Half the difference first: a range beyond what a float holds must not turn into infinity.
    steps = [
        f"{2 + (width - 4) * ((x / 2 - x0 / 2) / (dx / 2)):.1f} "
        f"{height - 2 - (height - 4) * ((y / 2 - y0 / 2) / (y1 / 2 - y0 / 2 or dy / 2)):.1f}"
        for x, y in points
    ]
    return "M" + "L".join(steps), (y0, y1)


def _outputs(output: Output) -> str:
    """Rank 0's output open, the others folded away."""
    drawn = []
    for index, (rank, lines) in enumerate(output.items()):
        if lines:
            shown = "".join(_line(line) for line in lines[-_STATIC_LINES:])
            drawn.append(_box(shown, f"rank {rank}", "", opened=index == 0))
    return "".join(drawn)


def _line(line: Sequence[str]) -> str:
    """A line of a rank, or what it displays: pictures, and HTML in a frame of its own that runs no script."""
    stream, plain = line[:2]
    if stream == "image":
        return (
            f'<img src="{escape(line[2], quote=True)}" alt="{escape(plain, quote=True)}" '
            f'style="display:block;max-width:100%;background:#fff">'
        )
    if stream == "html":
        page = escape(FRAME + line[2], quote=True)
        return (
            f'<iframe sandbox="" srcdoc="{page}" title="{escape(plain[:200], quote=True)}" '
            f'style="display:block;width:100%;height:{frame_height(line[2])}px;border:0;resize:vertical"></iframe>'
        )
    return escape(plain) + "\n"


def frame_height(markup: str) -> int:
    """Pixels for a frame that can't tell its own: by its rows."""
    return min(320, max(60, 28 * (1 + markup.count("<tr") + markup.count("<p"))))


def _pre(content: str, title: str, colour: str, *, opened: bool = True) -> str:
    return _box(escape(content), title, colour, opened=opened)


def _box(content: str, title: str, colour: str, *, opened: bool = True) -> str:
    edge = f"border-left:3px solid {colour};" if colour else ""
    return (
        f'<details{" open" if opened else ""} style="margin-top:6px"><summary style="cursor:pointer;color:{_QUIET};'
        f'font-size:12px">{escape(title)}</summary><pre style="font:12px/1.4 {_CODE};background:{_SHADE};{edge}'
        f"color:{_TEXT};border-radius:4px;padding:6px 8px;margin:2px 0 0;max-height:260px;overflow:auto;"
        f'white-space:pre-wrap;overflow-wrap:anywhere">{content}</pre></details>'
    )
