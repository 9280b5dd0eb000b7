"""Puts a job's view below a cell, in the form that the tool at hand can show.

Where widgets work: the live widget, and beside it a static display that the widget hides and that is left for
reloads, other tools and the saved file. Elsewhere (`jupyter execute`, papermill, Colab): the static display, kept up to
date. In a terminal: plain lines. Knows IPython's display; must not know the daemon.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec

from jupyter_elastic.client.job import BACKGROUND, Job
from jupyter_elastic.types import ENDED
from jupyter_elastic.widgets import display
from jupyter_elastic.widgets.output import Output
from jupyter_elastic.widgets.page import JobPage, forms, job_page
from jupyter_elastic.widgets.relay import Relay
from jupyter_elastic.widgets.updater import updater

STATIC_S = 1.0
"""The static display is renewed at most so often: each renewal is written into the notebook's file."""
KEPT_S = 60.0
"""What a page keeps below a live view is renewed so often while the job goes on, and soon after it has begun."""
BEGUN_S = 3.0
UNDRAWN_S = 5.0
"""The same where no page has said that it draws the live view: then the static one may be all that there is."""
ASLEEP_S = 10.0
"""A widget that nobody sees is fed so often."""
WAIT_TICK_S = 0.25
"""So often the cell that waits looks for what rank 0 displays, and whether to go on."""
LAST_S = 10.0
"""The last drawing of a job that has ended is waited for no longer than this."""
MIME = "application/vnd.jupyter-elastic.job+json"


def surface(shell: Any) -> str:
    """`widget`, `static` (a front end that runs no widgets for us) or `terminal`."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return "terminal"
    # nbclient and papermill say that nobody can answer a question: nobody looks at widgets there either.
    headless = not getattr(kernel, "_allow_stdin", True)
    return "static" if headless or "google.colab" in sys.modules else "widget"


def prepare() -> None:
    """Load what a view needs ahead of the first one: widgets take half a second to import."""
    from jupyter_elastic.widgets import job  # noqa: F401

    updater()


class JobDisplay:
    """A job on the page. `waits`: the cell below which it stands waits for the job's end."""

    def __init__(self, shell: Any, job: Job, kind: str, *, waits: bool = False) -> None:
        self.job = job
        self.surface = surface(shell)
        self._shell = shell
        self._waits = waits
        self._output: Output = {}
        self._handle: Any = None
        self._drawn_at = self._pushed_at = 0.0
        self._drawn_phase = ""
        self._printed = ""
        if self.surface == "widget":
            from IPython.display import display as show

            from jupyter_elastic.widgets.job import JobWidget

            self._widget = JobWidget(job=job.id, on_background=(job.folder / BACKGROUND).touch, waits=waits)
            show(self._widget)
        self.followed, self.ended = updater().show_job(job, self._draw, kind)
        self._relay = Relay(shell, job.folder, again=not waits) if self.surface != "terminal" else None
        if self._relay is not None:
            self._draw_static()
        if self.surface == "static":
            shell.events.register("post_run_cell", self._after_cell)

    def wait(self) -> bool:
        """Keep the page up to date until the job's end, and show what rank 0 displays; False once it is sent away."""
        while not self.ended.wait(WAIT_TICK_S):
            if (self.job.folder / BACKGROUND).exists():  # a click asked for it, by this kernel or by the server
                self.let_go()
                return False
            self.refresh()
        self.refresh(last=True)
        return True

    def refresh(self, *, last: bool = False) -> None:
        """Renew what does not renew itself, and show what rank 0 displays; called by the thread that waits."""
        if self._relay is None:
            self._print()
            return
        news = self._relay.waiting
        self._relay.pump()
        if last or self._stale or (self.surface == "static" and time.monotonic() - self._drawn_at >= STATIC_S):
            self._draw_static()
        if news and self.surface == "widget":
            self._draw(self.followed.outputs.snapshot())  # without what now stands below

    def replay(self) -> None:
        """Show once more what another cell has shown of rank 0's displays; the others stand in the view."""
        if self._relay is not None:
            self._relay.pump()

    def let_go(self) -> None:
        """Nobody waits for the job any longer: the view goes on without the button for that."""
        self._waits = False
        if self.surface == "widget":
            self._widget.waits = False
        if self.surface != "terminal":
            self._draw_static()

    def page(self, outputs: Output | None = None, *, live: bool = True) -> JobPage:
        """What front ends draw, with these outputs or what was read last. A cell that waits shows a failure itself."""
        notice = updater().follower.notice
        return job_page(self.followed, notice, outputs=outputs, failure_apart=self._waits, live=live)

    def bundle(self) -> dict[str, Any]:
        """The static forms, richest first: our own type is drawn by our JupyterLab extension, live without a kernel."""
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

    def _draw(self, output: Output | None) -> None:
        """Called on the updater's thread. Who waits for the job draws what the page keeps, else it is drawn here."""
        self._output = output or self._output
        if self.surface == "widget" and self._seen:
            self._pushed_at = time.monotonic()
            self._widget.page = msgspec.json.encode(self.page(self._output)).decode()
        if self._handle is not None and not self._waits and (self.followed.model.ended or self._stale):
            self._draw_static()

    def _after_cell(self, _result: Any) -> None:
        """Renew the view of a detached job: nbclient and papermill only heed what the running cell says."""
        if self.job.known.phase in ENDED:  # the cell has waited for it: so has its view to
            self.ended.wait(LAST_S)
        self._draw_static()
        if self.ended.is_set():
            self._shell.events.unregister("post_run_cell", self._after_cell)

    @property
    def _seen(self) -> bool:
        """Whether to feed the widget: one that sleeps is fed slowly, for the page of a second browser."""
        if not self._widget.asleep or self.followed.model.ended:
            return True
        return time.monotonic() - self._pushed_at >= ASLEEP_S

    @property
    def _stale(self) -> bool:
        """Whether what the page keeps is no longer what a reader of the file should see."""
        age = time.monotonic() - self._drawn_at
        if self.surface == "widget" and not self._widget.drawn and age >= UNDRAWN_S:
            return True
        return age >= KEPT_S or (self.followed.model.phase != self._drawn_phase and age >= min(BEGUN_S, KEPT_S))

    def _draw_static(self) -> None:
        from IPython.display import display as show

        self._drawn_at, self._drawn_phase = time.monotonic(), self.followed.model.phase
        bundle = self.bundle()
        if self._handle is None:
            self._handle = show(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def _print(self) -> None:
        """In a terminal: a line whenever the state changes, and the full form at the end."""
        page = self.page()
        if self.ended.is_set():
            print(display.text(page.screen, page.outputs, error=page.traceback))  # noqa: T201
        elif page.screen.state != self._printed:
            print(f"job {page.screen.job} {page.screen.name}: {page.screen.state}")  # noqa: T201
        self._printed = page.screen.state
