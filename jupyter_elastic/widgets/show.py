"""Puts a job's view below a cell, in the form that the tool at hand can show.

Where widgets work: the live widget, and beside it a static display that the widget hides and that is left for
reloads, other tools and the saved file. Elsewhere (`jupyter execute`, papermill, Colab): the static display, kept up to
date. In a terminal: plain lines. Knows IPython's display; must not know the daemon.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from jupyter_elastic.client.job import BACKGROUND, Job
from jupyter_elastic.client.job_model import JobScreen
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import ENDED
from jupyter_elastic.widgets import display
from jupyter_elastic.widgets.live import Watched, live
from jupyter_elastic.widgets.output import without
from jupyter_elastic.widgets.relay import Relay

STATIC_S = 1.0
"""The static display is renewed at most so often: each renewal is written into the notebook's file."""
KEPT_S = 60.0
"""What a page keeps below a live view is renewed so often while the job goes on, and soon after it has begun."""
BEGUN_S = 3.0
LAST_S = 10.0
"""The view of a job that has ended is waited for no longer than this."""
Output = dict[str, list[list[str]]]
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

    live()


class Shown:
    """A view on the page, from `follow` on. It can be made before its job has a number, which takes a while."""

    def __init__(self, shell: Any, *, waits: bool = False) -> None:
        self.job: Job
        self.watched: Watched
        self.surface = surface(shell)
        self._shell = shell
        self._sent_away = threading.Event()
        self._output: Output = {}
        self._handle: Any = None
        self._drawn_at = 0.0
        self._drawn_phase = ""
        self._said = ""
        self._waits = waits
        self._relay: Relay | None = None
        if self.surface == "widget":
            from jupyter_elastic.widgets.job import JobWidget

            self._widget = JobWidget(on_wish=self._wish, waits=waits)

    def discard(self) -> None:
        """There is no job to follow."""
        if self.surface == "widget":
            self._widget.close()

    def follow(self, job: Job, kind: str) -> None:
        """Show this job from now on."""
        from IPython.display import display as show

        self.job = job
        if self.surface == "widget":
            # What `display` of the widget finds out after it has asked every formatter.
            data, metadata = self._widget._repr_mimebundle_() or ({}, {})
            show(data, metadata=metadata, raw=True)
        self.watched = live().watch(job, kind=kind)  # from here on two threads share Python's lock
        if self.surface == "widget":
            live().add(self.watched, self._feed)
        if self.surface == "static" or (self.surface == "widget" and not self._waits):
            self._draw_static()  # a cell that waits with a live view has the time to do it later
        # The page keeps what was shown last; who waits for the job draws that, who doesn't has it drawn.
        live().add(self.watched, self._keep)
        if self.surface == "static":
            self._shell.events.register("post_run_cell", self._after_cell)
        if self.surface != "terminal":
            self._relay = Relay(self._shell, job.folder, again=not self._waits)

    def _after_cell(self, _result: Any) -> None:
        """Renew the view of a detached job: nbclient and papermill only heed what the running cell says."""
        if self.job.known.phase in ENDED:  # the cell has waited for it: so has its view to
            self.watched.ended.wait(LAST_S)
        self._draw_static()
        if self.watched.ended.is_set():
            self._shell.events.unregister("post_run_cell", self._after_cell)

    @property
    def sent_away(self) -> bool:
        """Whether somebody sent the job to the background, so that the cell need not wait any longer.

        A front end that does not reach the kernel says so by a file in the job's folder.
        """
        return self._sent_away.is_set() or (self.job.folder / BACKGROUND).exists()

    def refresh(self, *, last: bool = False) -> None:
        """Renew what does not renew itself, and show what rank 0 displays; called by the thread that waits."""
        if self.surface == "terminal":
            self._say()
            return
        news = self._relay is not None and self._relay.waiting
        due = (self.surface == "static" and time.monotonic() - self._drawn_at >= STATIC_S) or self._stale
        if self._handle is None and (news or not last):
            self._draw_static()  # what the cell displays stands below it
        if self._relay is not None:
            self._relay.pump()
        if last or due:
            self._draw_static()
        if news and self.surface == "widget":
            self._feed(self.watched.screen(), self.watched.outputs.snapshot())  # without what now stands below

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

    def page(self, screen: JobScreen) -> dict[str, Any]:
        """What front ends draw (`server_ext.pages.JobPage` is its twin)."""
        return {
            "screen": screen,
            "outputs": without(self._output or self.watched.outputs.snapshot(), self._failed()),
            "traceback": self._traceback(),
            "notice": self.watched.problem,
            "folder": self.job.folder.name,
        }

    def _wish(self, wish: dict[str, Any], told: Callable[[str], None]) -> None:
        if wish["type"] == "background":
            self._sent_away.set()
            told("")
        elif wish["type"] == "cancel":
            live().wish(wire.CancelJob(job=self.job.id, reason="cancelled in the notebook"), told)
        elif isinstance(wish.get("least"), int) and isinstance(wish.get("most"), int):
            live().wish(wire.ResizeJob(job=self.job.id, min_slots=wish["least"], max_slots=wish["most"]), told)
        else:
            told("a job is resized to whole numbers of slots, MIN:MAX")

    def _feed(self, screen: JobScreen, outputs: Output | None) -> None:
        self._output = outputs or self._output
        self._widget.page = msgspec.json.encode(self.page(screen)).decode()

    def _keep(self, screen: JobScreen, outputs: Output | None) -> None:
        if self.surface == "terminal" or self._waits:
            return
        if screen.ended_at is not None or self._stale:
            self._output = outputs or self._output
            self._draw_static()

    @property
    def _stale(self) -> bool:
        """Whether what the page keeps is no longer what a reader of the file should see."""
        age = time.monotonic() - self._drawn_at
        changed = self.watched.model.phase != self._drawn_phase
        return self._handle is not None and (age >= KEPT_S or (changed and age >= min(BEGUN_S, KEPT_S)))

    def _draw_static(self) -> None:
        from IPython.display import display as show

        self._drawn_at, self._drawn_phase = time.monotonic(), self.watched.model.phase
        bundle = self.bundle()
        if self._handle is None:
            self._handle = show(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def bundle(self) -> dict[str, Any]:
        """The static forms, richest first: our own type is drawn by our JupyterLab extension, live without a kernel."""
        screen, error = self.watched.screen(), self._traceback()
        outputs = without(self.watched.outputs.snapshot(), self._failed())
        rank = self.job.error.rank if error and self.job.error else 0
        return {
            MIME: {
                "job": self.job.id,
                "folder": self.job.folder.name,  # a number alone may be another pool's job
                "waits": self._waits and not self.watched.model.ended,
                "told": self._waits and self.watched.model.ended,  # the cell itself shows its failure
                "page": msgspec.to_builtins(self.page(screen)),
            },
            **display.bundle(screen, outputs, error=error, rank=rank),
        }

    def _traceback(self) -> str:
        """What the view says of a failure: nothing where the cell that waits shows it as its own."""
        return "" if self._waits else self._failed()

    def _failed(self) -> str:
        found = self.job.error if self.watched.model.phase == "failed" else None
        return "" if found is None else found.text

    def _say(self) -> None:
        """In a terminal: a line whenever the state changes, and the full form at the end."""
        screen = self.watched.screen()
        if self.watched.ended.is_set():
            outputs = without(self.watched.outputs.snapshot(), self._failed())
            print(display.text(screen, outputs, error=self._traceback()))  # noqa: T201
        elif screen.state != self._said:
            print(f"job {screen.job} {screen.name}: {screen.state}")  # noqa: T201
        self._said = screen.state
