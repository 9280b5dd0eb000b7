"""Shows the live view of a job in a notebook: an anywidget that draws the page it is given.

Knows traits and the comm; must not know how a page is made (that is `page`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets
import traitlets

from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobId
from jupyter_elastic.views import earlier_runs
from jupyter_elastic.views.updater import updater
from jupyter_elastic.widgets import bundle
from jupyter_elastic.widgets.page_commands import CommandWidget, PageCommand


class JobWidget(CommandWidget):
    """A job's live view. `page` goes to the browser; a click comes back as a command."""

    _esm = traitlets.Unicode(bundle.script("job_loader").read_text(encoding="utf-8")).tag(sync=True)
    _anywidget_id = traitlets.Unicode("jupyter_elastic.widgets.job_widget.JobWidget").tag(sync=True)

    page = traitlets.Unicode().tag(sync=True)
    """Screen, outputs, traceback and notice as one JSON text, which passes the comm at a tenth of the parts' cost."""
    waits = traitlets.Bool().tag(sync=True)
    """True while the cell waits for the job, so that the job can be sent to the background."""

    def __init__(self, *, job: JobId, on_background: Callable[[], None], **traits: Any) -> None:
        # Tools without widgets show the static view beside this.
        super().__init__(layout=_shared_layout(), plain="", **traits)
        self._job, self._on_background = job, on_background
        self.asleep = False
        """True while the page reports that nobody sees it."""
        self.drawn = False
        """True once a page has reported that it draws this view."""

    async def execute(self, command: PageCommand) -> Any:
        """Execute a command that the server offers by REST, or let the waiting cell go on."""
        ask = updater().follower.ask
        match command.type:
            case "background":
                self._on_background()
            case "sleep" | "wake":
                self.asleep, self.drawn = command.type == "sleep", True
            case "earlier":
                return await earlier_runs.runs(updater().follower, self._job)
            case "metrics":
                return await earlier_runs.metrics(updater().follower, command.job)
            case "cancel":
                await ask(wire.CancelJob(job=self._job, reason="cancelled in the notebook"))
            case "resize":
                await ask(wire.ResizeJob(job=self._job, min_slots=command.least, max_slots=command.most))
            case _:
                await super().execute(command)
        return None

    def add_traits(self, **traits: Any) -> None:
        """Leave out the class's traits: for anywidget's own traits every view would be given a class of its own."""
        if missing := {name: trait for name, trait in traits.items() if not self.has_trait(name)}:
            super().add_traits(**missing)


class _Shared(ipywidgets.Layout):
    """The data shared by all views of a kernel: a layout without settings, and the front end.

    It is a layout because that is the one kind of embedded widget that every front end passes whole to a view.
    """

    script = traitlets.Unicode(bundle.script("job").read_text(encoding="utf-8")).tag(sync=True)
    style = traitlets.Unicode(bundle.style()).tag(sync=True)


_shared: _Shared | None = None


def _shared_layout() -> _Shared:
    """Return the one shared layout: a widget of its own, with a comm, that takes as long to make as the view."""
    global _shared
    if _shared is None or _shared.comm is None:  # closed, as by `Widget.close_all()`
        _shared = _Shared()
    return _shared
