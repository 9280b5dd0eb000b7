"""Puts a job's view below a cell, in the form that the tool at hand can show.

Where widgets work: the live widget, and beside it a static display that the widget hides and that is left for reloads,
other tools and the saved file. In other tools (`jupyter execute`, papermill, Colab): the static display, kept up to
date. In a terminal: plain lines. An exception while showing is printed and goes no further: the cell waits for its job,
and the job's outcome matters more than its picture. Knows IPython's display; must not know the daemon.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from jupyter_elastic.client.job import BACKGROUND, Job
from jupyter_elastic.types import ENDED
from jupyter_elastic.views import static_display
from jupyter_elastic.views.job_page import JobPage, forms, job_page
from jupyter_elastic.views.output import Output
from jupyter_elastic.views.updater import updater
from jupyter_elastic.widgets.front_end import cell_id, renews, surface
from jupyter_elastic.widgets.relay import Relay

STATIC_S = 1.0
"""Minimum seconds between updates of the static display: each update is written into the notebook's file."""
SELDOMER = 0.01
"""Fraction of the job's age between updates of a kept display, so that a file does not grow by views."""
SOON_S = 0.2
"""Seconds that the first static display waits for the job's start: some front ends show no other until its end."""
KEPT_S = 60.0
"""Seconds between updates of a static display below a live view; the first comes soon after the start (`BEGUN_S`)."""
BEGUN_S = 3.0
UNDRAWN_S = 5.0
"""Seconds between updates if no page has reported that it draws the live view: the static one may be the only one."""
ASLEEP_S = 10.0
"""Seconds between updates of a widget that nobody sees."""
WAIT_TICK_S = 0.25
"""Seconds between checks of the waiting cell for rank 0's displays, and for a request to go on."""
LAST_S = 10.0
"""Maximum seconds to wait for the last drawing of an ended job."""
MIME = "application/vnd.jupyter-elastic.job+json"


def prepare() -> None:
    """Load a view's modules before the first view: importing widgets takes half a second."""
    from jupyter_elastic.widgets import job_widget  # noqa: F401

    updater()


class JobDisplay:
    """A job's view on the page. `waits`: the cell above it waits for the job's end."""

    def __init__(self, shell: Any, job: Job, kind: str, *, waits: bool = False) -> None:
        self.job = job
        self.surface = surface(shell)
        self._shell = shell
        self._waits = waits
        self._output: Output = {}
        self._renews, self._in_notebook = renews(shell), bool(cell_id(shell))
        self._handle: Any = None
        self._widget: Any = None
        self._began = time.monotonic()
        self._drawn_at = self._pushed_at = 0.0
        self._drawn_phase = self._printed = ""
        self._over = self._broken = False
        if self.surface == "widget":
            self._try(self._show_widget)
            self.surface = "static" if self._widget is None else "widget"
        self.followed, self.ended = updater().show_job(job, self._draw, kind)
        self._relay = Relay(shell, job.files, again=not waits) if self.surface != "terminal" else None
        if self._relay is not None:
            soon = 0.0 if self._in_notebook else self._began + SOON_S
            while time.monotonic() < soon and self.followed.model.phase == "queued":
                time.sleep(SOON_S / 40)
            self._try(self._draw_static)
        if self.surface == "static" or self._renews is False:
            shell.events.register("post_run_cell", self._after_cell)

    def wait(self) -> bool:
        """Update the page until the job's end, and show rank 0's displays; return False once in the background."""
        while not self.ended.wait(WAIT_TICK_S):
            if BACKGROUND in self.job.files.names():  # a click asked for it, by this kernel or by the server
                self.let_go()
                return False
            self.refresh()
        self.refresh(last=True)
        return True

    def refresh(self, *, last: bool = False) -> None:
        """Update views that do not update themselves, and show rank 0's displays; called by the waiting thread."""
        if self._relay is None:
            self._print()
            return
        news = self._relay.waiting
        self._try(self._relay.pump)
        if last or self._stale:
            self._try(self._draw_static, last=last)
        if news and self.surface == "widget":
            self._try(self._draw, self.followed.outputs.snapshot())  # without the displays that are below the cell now

    def replay(self) -> None:
        """Show again the displays of rank 0 that another cell has shown; the others are in the view."""
        if self._relay is not None:
            self._try(self._relay.pump)

    def let_go(self) -> None:
        """Stop waiting for the job: the view goes on without the button for that."""
        self._waits = False
        if self.surface == "widget":
            self._try(setattr, self._widget, "waits", False)
        if self.surface != "terminal":
            self._try(self._draw_static)

    def page(self, outputs: Output | None = None, *, live: bool = True) -> JobPage:
        """Return the page for front ends, with these or the last outputs. A waiting cell shows a failure itself."""
        notice = updater().follower.notice
        return job_page(self.followed, notice, outputs=outputs, failure_apart=self._waits, live=live)

    def bundle(self) -> dict[str, Any]:
        """Return the static forms, richest first: our JupyterLab extension draws our type, live without a kernel."""
        page, ended = self.page(live=False), self.followed.model.ended
        return {
            MIME: {
                "job": self.job.id,
                "folder": page.folder,  # a number alone may be another pool's job
                "waits": self._waits and not ended,
                "failure_apart": self._waits and ended,  # the cell itself shows its failure
                "page": msgspec.to_builtins(page),
            },
            **forms(self.followed, page),
        }

    # --- inside -------------------------------------------------------------------------------------------------------

    def _try(self, show: Callable[..., object], *given: Any, **how: Any) -> None:
        """Call `show`; report its first exception, and let the cell go on."""
        try:
            show(*given, **how)
        except Exception as problem:
            if not self._broken:
                said = f"{type(problem).__name__}: {problem}"
                print(f"note: not all of job {self.job.id} can be shown here ({said}); it goes on", file=sys.stderr)  # noqa: T201
            self._broken = True

    def _show_widget(self) -> None:
        from IPython.display import display as show

        from jupyter_elastic.widgets.job_widget import JobWidget

        touch = functools.partial(self.job.files.write, b"", BACKGROUND)
        show(widget := JobWidget(job=self.job.id, on_background=touch, waits=self._waits))
        self._widget = widget

    def _draw(self, output: Output | None) -> None:
        """Draw on the updater's thread. A waiting cell's thread draws the kept display itself, otherwise this does."""
        self._output = output or self._output
        if self.surface == "widget" and self._seen:
            self._pushed_at = time.monotonic()
            self._widget.page = msgspec.json.encode(self.page(self._output)).decode()
        if self._handle is not None and not self._waits and (self.followed.model.ended or self._stale):
            self._draw_static()

    def _after_cell(self, _result: Any) -> None:
        """Update the view of a detached job: nbclient and papermill only accept displays of the running cell."""
        if self.job.known.phase in ENDED:  # the cell has waited for the job, so the view must show its end too
            self.ended.wait(LAST_S)
        if not self._over and (self.ended.is_set() or self._stale or not self._in_notebook):
            self._try(self._draw_static, last=self.ended.is_set())
        if self._over:
            self._shell.events.unregister("post_run_cell", self._after_cell)

    @property
    def _seen(self) -> bool:
        """True if the widget is to be fed; a sleeping one is fed slowly, for the page of a second browser."""
        if not self._widget.asleep or self.followed.model.ended:
            return True
        return time.monotonic() - self._pushed_at >= ASLEEP_S

    @property
    def _stale(self) -> bool:
        """True if the kept display no longer is what a reader of the file should see."""
        now = time.monotonic()
        age, every = now - self._drawn_at, (now - self._began) * SELDOMER
        if self.surface == "widget":
            began = self.followed.model.phase != self._drawn_phase and age >= max(min(BEGUN_S, KEPT_S), every)
            return began or age >= max(KEPT_S if self._widget.drawn else min(UNDRAWN_S, KEPT_S), every)
        if self._in_notebook:  # our JupyterLab extension draws it live, and some servers add each renewal to the file
            return age >= max(KEPT_S, now - self._began)
        return age >= max(STATIC_S if self._waits else KEPT_S, every)

    def _draw_static(self, *, last: bool = False) -> None:
        """Draw the static form; `last`: at the end, once. If displays can't be updated, only the end is drawn."""
        from IPython.display import display as show

        first, self._over = self._handle is None, last
        self._drawn_at, self._drawn_phase = time.monotonic(), self.followed.model.phase
        if self._renews is False and not last and (self._waits or not first):
            return
        bundle = self.bundle()
        if first or self._renews is False:
            self._handle = show(bundle, raw=True, display_id=True)
            return
        self._handle.update(bundle, raw=True)
        if last and self._waits and not (self._renews or getattr(self._widget, "drawn", False)):
            show(bundle, raw=True)  # a console shows no update: this is the first that it shows of what ranks print

    def _print(self) -> None:
        """Print a line whenever the state changes, and the full form at the end; for a terminal."""
        page = self.page()
        if self.ended.is_set():
            print(static_display.text(page.screen, page.outputs, error=page.traceback))  # noqa: T201
        elif page.screen.state != self._printed:
            print(f"job {page.screen.job} {page.screen.name}: {page.screen.state}")  # noqa: T201
        self._printed = page.screen.state
