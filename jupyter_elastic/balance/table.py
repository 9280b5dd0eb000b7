"""What each host holds, how fast it is and how long it waits, for a person: a table as HTML and as text (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MOST = 16
"""So many hosts are shown."""
_HEAD = ("host", "samples", "moved", "samples/s", "waits")
_CELL = "text-align:left;padding:0 1em 0 0"


@dataclass(frozen=True)
class Row:
    """One host."""

    name: str
    before: int
    """Samples before the first move."""
    now: int
    speed: float | None
    """Samples/s; None where it was not measured yet."""
    waits: float | None
    """The share of the time, 0 to 1, that it spends in collectives, those that it waits in above all."""


def bundle(rows: Sequence[Row], words: str) -> dict[str, str]:
    """The table and what was decided last, by MIME type."""
    shown, more = rows[:MOST], len(rows) - MOST
    largest = max((max(row.before, row.now) for row in shown), default=0)
    table = [[row.name, *_figures(row)] for row in shown]
    rest = [f"and {more} more"] if more > 0 else []
    widths = [max(len(line[at]) for line in [list(_HEAD), *table]) for at in range(len(_HEAD))]
    text = ["  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
            for line in [list(_HEAD), *table]]  # fmt: skip
    head = "".join(f'<th style="{_CELL}">{word}</th>' for word in (*_HEAD[:2], "", *_HEAD[2:]))
    body = "".join(
        f'<tr><td style="{_CELL}">{escape(name)}</td><td style="{_CELL}">{samples}</td>'
        f'<td style="{_CELL}">{_bar(row.before, largest, "#b0b0b0")}{_bar(row.now, largest, "#1976d2")}</td>'
        + "".join(f'<td style="{_CELL}">{figure}</td>' for figure in figures)
        + "</tr>"
        for row, (name, samples, *figures) in zip(shown, table, strict=True)
    )
    below = "".join(f"<div>{escape(line)}</div>" for line in [*rest, words] if line)
    return {
        "text/plain": "\n".join([*text, *rest, *([words] if words else [])]),
        "text/html": f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}",
    }


def _figures(row: Row) -> list[str]:
    moved = row.now - row.before
    return [
        f"{row.now}" if not moved else f"{row.before} → {row.now}",
        f"{moved:+d}" if moved else "",
        "" if row.speed is None else f"{row.speed:.3g}",
        "" if row.waits is None else f"{row.waits:.0%}",
    ]


def _bar(samples: int, largest: int, colour: str) -> str:
    width = 120 * samples / largest if largest else 0
    return f'<div style="width:{width:.0f}px;height:5px;margin:1px 0;background:{colour}"></div>'
