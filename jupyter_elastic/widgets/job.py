"""The live view of a job in a notebook: an anywidget that draws the page it is given.

Knows traits and the comm; must not know how a page comes about (that is `page` and `updater`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anywidget
import ipywidgets
import traitlets

from jupyter_elastic.widgets import bundle

_STAND_IN = """
/* While the live view is on the page, the static HTML of the same job below it is not shown. */
.jp-OutputArea-child:has(.je-job) + .jp-OutputArea-child:has(.jelastic-static) { display: none; }
"""

Command = Callable[[dict[str, Any], Callable[[str], None]], None]
"""Takes what a click asks for (`{"type": "cancel"}`, `{"type": "resize", "least": 1, "most": 2}`, `background`), and
what is called with the reason why it can't be, or with an empty text."""


class JobWidget(anywidget.AnyWidget):
    """`page` goes to the browser; a click comes back as a message and is given to `on_command`."""

    _esm = traitlets.Unicode(bundle.script("job_loader").read_text(encoding="utf-8")).tag(sync=True)
    _anywidget_id = traitlets.Unicode("jupyter_elastic.widgets.job.JobWidget").tag(sync=True)

    page = traitlets.Unicode().tag(sync=True)
    """Screen, outputs, traceback, notice, as JSON: a text passes the comm at a tenth of what its parts would cost."""
    waits = traitlets.Bool().tag(sync=True)
    """Whether the cell waits for the job, so that it can be sent to the background."""

    def __init__(self, *, on_command: Command, **traits: Any) -> None:
        super().__init__(layout=_shared_layout(), **traits)
        self._on_command = on_command
        self.on_msg(self._message)
        receive_while_busy(self)

    def add_traits(self, **traits: Any) -> None:
        """Leave out what the class has: for anywidget's own traits every view would be given a class of its own."""
        if missing := {name: trait for name, trait in traits.items() if not self.has_trait(name)}:
            super().add_traits(**missing)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        found = super()._repr_mimebundle_(**options)
        data = found[0] if isinstance(found, tuple) else found
        if data:
            data["text/plain"] = ""  # tools without widgets show the static view beside this
        return found

    def _message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if isinstance(content, dict) and content.get("type") in {"cancel", "resize", "background"}:
            number = content.get("id")
            self._on_command(content, lambda problem: self.send({"id": number, "error": problem}))


class _Shared(ipywidgets.Layout):
    """What all views of a kernel have in common: a layout without settings, and the front end.

    A layout, because that is the one widget of another that every front end hands to a view whole.
    """

    script = traitlets.Unicode(bundle.script("job").read_text(encoding="utf-8")).tag(sync=True)
    style = traitlets.Unicode(bundle.style() + _STAND_IN).tag(sync=True)


_shared: _Shared | None = None


def _shared_layout() -> _Shared:
    """One for all: it is a widget of its own, with a comm, and takes as long to make as the view."""
    global _shared
    if _shared is None or _shared.comm is None:  # closed, as by `Widget.close_all()`
        _shared = _Shared()
    return _shared


def receive_while_busy(widget: Any) -> None:
    """Let a click be received while a cell keeps the kernel busy.

    JupyterLab sends it over a subshell, but ipykernel 7.4 hands it to the loop that last sent on the comm, which is the
    busy one. This takes the front end's choice instead, where that version's hook exists. Before ipykernel 7 there are
    no subshells: a click waits for the cell's end, unless the server extension takes it.
    """
    comm = getattr(widget, "comm", None)
    if comm is not None and hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default=None: default
