"""Puts a job's view below a cell, in the form that the tool at hand can show.

Where widgets work: the live widget, and beside it a static display that the widget hides and that is left for
reloads, other tools and the saved file. Elsewhere (`jupyter execute`, papermill, Colab): the static display, kept up to
date. In a terminal: plain lines. Whatever showing raises is said and goes no further: the cell waits for its job, and
the job's outcome goes before its picture. Knows IPython's display; must not know the daemon.
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
from jupyter_elastic.widgets import display
from jupyter_elastic.widgets.front_end import cell_id, renews, surface
from jupyter_elastic.widgets.output import Output
from jupyter_elastic.widgets.page import JobPage, forms, job_page
from jupyter_elastic.widgets.relay import Relay
from jupyter_elastic.widgets.updater import updater

STATIC_S = 1.0
"""The static display is renewed at most so often: each renewal is written into the notebook's file."""
SELDOMER = 0.01
"""Part of the job's age: nothing that is kept is renewed sooner, so that a file does not grow by views."""
SOON_S = 0.2
"""The first static display waits so long for the job to start: for some front ends it is all until the job's end."""
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
        """Keep the page up to date until the job's end, and show what rank 0 displays; False once it is sent away."""
        while not self.ended.wait(WAIT_TICK_S):
            if BACKGROUND in self.job.files.names():  # a click asked for it, by this kernel or by the server
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
        self._try(self._relay.pump)
        if last or self._stale:
            self._try(self._draw_static, last=last)
        if news and self.surface == "widget":
            self._try(self._draw, self.followed.outputs.snapshot())  # without what now stands below

    def replay(self) -> None:
        """Show once more what another cell has shown of rank 0's displays; the others stand in the view."""
        if self._relay is not None:
            self._try(self._relay.pump)

    def let_go(self) -> None:
        """Nobody waits for the job any longer: the view goes on without the button for that."""
        self._waits = False
        if self.surface == "widget":
            self._try(setattr, self._widget, "waits", False)
        if self.surface != "terminal":
            self._try(self._draw_static)

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

    def _try(self, show: Callable[..., object], *given: Any, **how: Any) -> None:
        """Show something; what goes wrong is said once, and the cell goes on."""
        try:
            show(*given, **how)
        except Exception as problem:
            if not self._broken:
                said = f"{type(problem).__name__}: {problem}"
                print(f"note: not all of job {self.job.id} can be shown here ({said}); it goes on", file=sys.stderr)  # noqa: T201
            self._broken = True

    def _show_widget(self) -> None:
        from IPython.display import display as show

        from jupyter_elastic.widgets.job import JobWidget

        touch = functools.partial(self.job.files.write, b"", BACKGROUND)
        show(widget := JobWidget(job=self.job.id, on_background=touch, waits=self._waits))
        self._widget = widget

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
        if not self._over and (self.ended.is_set() or self._stale or not self._in_notebook):
            self._try(self._draw_static, last=self.ended.is_set())
        if self._over:
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
        now = time.monotonic()
        age, every = now - self._drawn_at, (now - self._began) * SELDOMER
        if self.surface == "widget":
            began = self.followed.model.phase != self._drawn_phase and age >= max(min(BEGUN_S, KEPT_S), every)
            return began or age >= max(KEPT_S if self._widget.drawn else min(UNDRAWN_S, KEPT_S), every)
        if self._in_notebook:  # our JupyterLab extension draws it live, and some servers add each renewal to the file
            return age >= max(KEPT_S, now - self._began)
        return age >= max(STATIC_S if self._waits else KEPT_S, every)

    def _draw_static(self, *, last: bool = False) -> None:
        """Draw the static form; `last`: at the end, once. Where no display is renewed it is the end alone."""
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
        """In a terminal: a line whenever the state changes, and the full form at the end."""
        page = self.page()
        if self.ended.is_set():
            print(display.text(page.screen, page.outputs, error=page.traceback))  # noqa: T201
        elif page.screen.state != self._printed:
            print(f"job {page.screen.job} {page.screen.name}: {page.screen.state}")  # noqa: T201
        self._printed = page.screen.state
