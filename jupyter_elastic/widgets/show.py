"""Puts a job's view below a cell, in the form that the tool at hand can show.

Where widgets work: the live widget, and beside it a static display that the widget hides and that is left for
reloads, other tools and the saved file. Elsewhere (`jupyter execute`, papermill, Colab): the static display, kept up to
date. In a terminal: plain lines. Knows IPython's display; must not know the daemon.
"""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any

from jupyter_elastic.job import Job
from jupyter_elastic.widgets import display
from jupyter_elastic.widgets.live import Watched, live
from jupyter_elastic.widgets.model import JobScreen

STATIC_S = 1.0
"""The static display is renewed at most so often: each renewal is written into the notebook's file."""
MIME = "application/vnd.jupyter-elastic.job+json"


def surface(shell: Any) -> str:
    """`widget`, `static` (a front end that runs no widgets for us) or `terminal`."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return "terminal"
    # nbclient and papermill say that nobody can answer a question: nobody looks at widgets there either.
    headless = not getattr(kernel, "_allow_stdin", True)
    return "static" if headless or "google.colab" in sys.modules else "widget"


class Shown:
    """A view on the page."""

    def __init__(self, shell: Any, job: Job, kind: str) -> None:
        self.job = job
        self.surface = surface(shell)
        self.mark = f"jelastic-{uuid.uuid4().hex[:12]}"
        self.watched: Watched = live().watch(job, kind=kind)
        self._handle: Any = None
        self._drawn_at = 0.0
        self._said = ""
        if self.surface == "widget":
            self._show_widget()
        if self.surface != "terminal":
            self._draw_static()
        # The page keeps what it shows at the end, whether or not somebody waits for it.
        self.watched.sinks.append(self._at_end)

    def refresh(self, *, last: bool = False) -> None:
        """Renew what does not renew itself; called by the thread that waits."""
        if self.surface == "terminal":
            self._say()
        elif last or (self.surface == "static" and time.monotonic() - self._drawn_at >= STATIC_S):
            self._draw_static()

    def _show_widget(self) -> None:
        from IPython.display import display as show

        from jupyter_elastic.widgets.job import JobWidget

        number = self.job.id
        self._widget = JobWidget(
            on_wish=lambda _wish: live().cancel(number, "cancelled in the notebook"),
            mark=self.mark,
            folder=str(self.job.folder),
        )
        self._widget.show(self.watched.screen(), self.watched.outputs.snapshot())
        show(self._widget)
        self.watched.sinks.append(self._feed)

    def _feed(self, screen: JobScreen, outputs: dict[str, list[list[str]]] | None) -> None:
        if screen.ended_at is not None:
            self._widget.error = self._error()
        self._widget.show(screen, outputs)

    def _at_end(self, screen: JobScreen, _outputs: dict[str, list[list[str]]] | None) -> None:
        if screen.ended_at is not None and self.surface != "terminal":
            self._draw_static()

    def _draw_static(self) -> None:
        from IPython.display import display as show

        self._drawn_at = time.monotonic()
        bundle = self.bundle()
        if self._handle is None:
            self._handle = show(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def bundle(self) -> dict[str, Any]:
        """The static forms, richest first."""
        screen, outputs, error = self.watched.screen(), self.watched.outputs.snapshot(), self._error()
        return {
            "text/html": display.html(screen, outputs, error=error, mark=self.mark),
            "text/plain": display.text(screen, outputs, error=error),
        }

    def _error(self) -> str:
        found = self.job.error if self.watched.model.phase == "failed" else None
        return "" if found is None else f"rank {found.rank}\n{found.traceback or found.message}"

    def _say(self) -> None:
        """In a terminal: a line whenever the state changes, and the full form at the end."""
        screen = self.watched.screen()
        if self.watched.ended.is_set():
            print(display.text(screen, self.watched.outputs.snapshot(), error=self._error()))  # noqa: T201
        elif screen.state != self._said:
            print(f"job {screen.job} {screen.name}: {screen.state}")  # noqa: T201
        self._said = screen.state
