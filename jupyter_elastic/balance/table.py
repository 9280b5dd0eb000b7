"""Shows each host's samples, speed and waiting time to a person: table and plot, as HTML and text (pure).

The plot has two bars for each host, before the first move and now, of its samples and of the seconds that it computes
an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MAX_ROWS = 16
_HEAD = ("host", "samples", "moved", "samples/s", "epoch", "waits")
_CELL = "text-align:left;padding:1px 12px 1px 0;white-space:nowrap"
_LINE = "margin:2px 0"
_WIDTH = 110
"""Length of the longest bar, in pixels."""
_BEFORE, _NOW = "var(--jp-ui-font-color3, #9e9e9e)", "var(--jp-brand-color1, #1976d2)"


@dataclass(frozen=True)
class HostRow:
    """One host."""

    name: str
    before: int
    """Samples before the first move."""
    now: int
    speed: float | None
    """Samples/s; None before the first measurement."""
    waits: float | None
    """Share of the time, 0 to 1, spent in collectives, above all in waiting there."""

    def seconds(self, samples: int) -> float | None:
        """Return an epoch's computing seconds with these samples; None without a known speed."""
        return samples / self.speed if self.speed else None


def bundle(rows: Sequence[HostRow], words: str) -> dict[str, str]:
    """Return the table and the last decision, by MIME type."""
    shown, more = rows[:MAX_ROWS], len(rows) - MAX_ROWS
    table = [[row.name, *_figures(row)] for row in shown]
    rest = [f"and {more} more"] if more > 0 else []
    widths = [max(len(line[at]) for line in [list(_HEAD), *table]) for at in range(len(_HEAD))]
    text = ["  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
            for line in [list(_HEAD), *table]]  # fmt: skip
    return {
        "text/plain": "\n".join([*text, *rest, *([words] if words else [])]),
        "text/html": _html(shown, table, [line for line in [*rest, words] if line]),
    }


def _html(rows: Sequence[HostRow], table: Sequence[Sequence[str]], below: Sequence[str]) -> str:
    held = [[float(row.before), float(row.now)] for row in rows]
    lasts = [[row.seconds(row.before) or 0.0, row.seconds(row.now) or 0.0] for row in rows]
    max_held, longest = max(map(max, held), default=0.0), max(map(max, lasts), default=0.0)
    head = "".join(f'<th style="{_CELL}">{word}</th>' for word in _HEAD)
    lines = []
    for (name, samples, moved, speed, epoch, waits), samples_of, seconds_of in zip(table, held, lasts, strict=True):
        with_bars = samples + _bars(samples_of, max_held), epoch + _bars(seconds_of, longest)
        cells = escape(name), with_bars[0], moved, speed, with_bars[1], waits
        lines.append("<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells) + "</tr>")
    key = f"{_swatch(_BEFORE)} before {_swatch(_NOW)} now"
    return (
        f'<div style="overflow-x:auto"><table border="1" class="dataframe"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        + "".join(f'<p style="{_LINE}">{line}</p>' for line in [key, *map(escape, below)])
    )


def _figures(row: HostRow) -> list[str]:
    moved = row.now - row.before
    before_s, now_s = row.seconds(row.before), row.seconds(row.now)
    epoch = "" if before_s is None or now_s is None else _changed(f"{before_s:.3g} s", f"{now_s:.3g} s")
    return [
        _changed(f"{row.before}", f"{row.now}"),
        f"{moved:+d}" if moved else "",
        "" if row.speed is None else f"{row.speed:.3g}",
        epoch,
        "" if row.waits is None else f"{row.waits:.0%}",
    ]


def _changed(before: str, now: str) -> str:
    return now if before == now else f"{before} → {now}"


def _bars(values: Sequence[float], longest: float) -> str:
    return "".join(
        f'<div style="width:{_WIDTH * value / longest if longest else 0:.0f}px;height:5px;margin:1px 0;'
        f'background:{colour}"></div>'
        for value, colour in zip(values, (_BEFORE, _NOW), strict=True)
    )


def _swatch(colour: str) -> str:
    return f'<span style="display:inline-block;width:10px;height:10px;background:{colour}"></span>'
