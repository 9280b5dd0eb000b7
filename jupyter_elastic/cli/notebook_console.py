"""Prints the output of `%elastic` in a notebook as HTML tables and paragraphs, so that nothing is cut off."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import Any

from rich.console import Console
from rich.table import Column, Table

_PLAIN_COLUMNS = 100
_SENTENCE = 40
"""Number of letters above which a cell counts as a sentence."""
_LINE = 10_000
"""Columns of a console that breaks no line: the page does."""
_COLOUR = re.compile(r"(?<!-)color: (#[0-9a-f]{6})(; text-decoration-color: \1)?")
"""Pattern of Rich's colours in a style, for the text and again for a line below it."""


class NotebookConsole(Console):
    """A console whose tables and sentences wrap at the page's width; the file keeps them as text too."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Show strings or a table; pictures made of letters (of the pool) are left to Rich."""
        from IPython.display import display as show

        if len(objects) == 1 and isinstance(objects[0], Table):
            html = _table(objects[0])
        elif all(isinstance(one, str) for one in objects):
            html = f'<div style="white-space:pre-wrap">{_Writer().html(*objects, **how)}</div>'
        else:
            super().print(*objects, **how)
            return
        show({"text/plain": plain(lambda console: console.print(*objects, **how)), "text/html": html}, raw=True)


def plain(write: Callable[[Console], object]) -> str:
    """Return the output of `write` as text without colours, even if the environment requests them (a kernel's does)."""
    console = Console(
        highlight=False, file=io.StringIO(), width=_PLAIN_COLUMNS, force_jupyter=False, force_terminal=False
    )
    with console.capture() as text:
        write(console)
    return text.get().rstrip()


def _table(table: Table) -> str:
    """Render a table as HTML; its cells are strings, like those of all our tables."""
    cell = _Writer().cell
    sides = [f' style="text-align:{column.justify};vertical-align:top{_least(column)}"' for column in table.columns]
    heads = [
        f'<th scope="col"{side}>{cell(column.header)}</th>' for column, side in zip(table.columns, sides, strict=True)
    ]
    rows = [
        [f"<td{side}>{cell(text)}</td>" for side, text in zip(sides, cells, strict=True)]
        for cells in zip(*(column.cells for column in table.columns), strict=True)
    ]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    # As pandas writes a table: with lines also where a reader keeps no styles.
    return f'<table border="1" class="dataframe"><thead><tr>{"".join(heads)}</tr></thead><tbody>{body}</tbody></table>'


def _least(column: Column) -> str:
    """Return a minimum width for columns of sentences: a narrow page would break them into single words."""
    return ";min-width:16em" if any(len(str(cell)) > _SENTENCE for cell in column.cells) else ""


class _Writer:
    """A writer of HTML from strings with Rich's markup; everything else in them is text."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, file=io.StringIO(), width=_LINE, force_jupyter=False, record=True)

    def cell(self, text: Any) -> str:
        """Render one cell of a table; most have no markup, and there may be thousands."""
        made = self._console.render_str(str(text))
        return self.html(made) if made.spans else escape(made.plain)

    def html(self, *objects: Any, **how: Any) -> str:
        """Render objects as one or several lines."""
        self._console.print(*objects, **how)
        html = self._console.export_html(inline_styles=True, code_format="{code}").rstrip()
        # Rich's colours are a terminal's: mixed with that of the page's text they can be read in a dark theme too.
        return _COLOUR.sub(r"color: color-mix(in srgb, \1 55%, currentColor)", html)
