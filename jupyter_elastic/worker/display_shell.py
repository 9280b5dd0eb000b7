"""Provides as much of IPython's shell as displays need: formatters, events, a publisher. Imported when IPython is.

Not a whole shell: that would put itself into `__main__`, keep a history and read the user's configuration.
"""

from __future__ import annotations

import base64
import contextlib
import sys
import traceback
import uuid
from typing import Any

from IPython.core.displaypub import DisplayPublisher
from IPython.core.events import EventManager, available_events
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import SingletonConfigurable

from jupyter_elastic.jobfiles.displays import Display
from jupyter_elastic.worker.display_recorder import printed, recorder, show_bundle

_WIDGET = "application/vnd.jupyter.widget-view+json"
_widgets: dict[str, str] = {}
"""Display id -> model id of the widgets that were displayed."""


class _Publisher(DisplayPublisher):
    """Gives every display to the recorder."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: Any = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_options: Any,
    ) -> None:
        """Show a bundle; with `update`, replace the display with this id."""
        del source
        kind = "update_display_data" if update else "display_data"
        name = str((transient or {}).get("display_id") or "")
        if _WIDGET in data and not update:
            name = name or uuid.uuid4().hex
            _widgets[name] = str(data[_WIDGET].get("model_id"))
        show_bundle(kind, sendable(data), metadata, name)  # type: ignore[arg-type]

    def clear_output(self, wait: bool = False) -> None:
        """Remove what this rank has displayed and printed; with `wait`, when it next displays or prints something."""
        recorder.put(Display(kind="clear_output", after=printed(), errors=printed(sys.stderr), wait=wait))


class _Formatter(DisplayFormatter):
    """A display formatter whose bytes are base 64, as Jupyter sends them."""

    def format(self, obj: Any, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super().format(obj, include=include, exclude=exclude)
        return sendable(data), metadata


class WorkerShell(InteractiveShell):
    """The shell that `get_ipython()` returns in a worker."""

    def __init__(self) -> None:
        SingletonConfigurable.__init__(self)
        self.configurables = [self]
        self.events = EventManager(self, available_events)
        self.display_formatter = _Formatter(parent=self)
        self.display_pub = _Publisher(parent=self)

    def showtraceback(self, *_arguments: Any, **_options: Any) -> None:
        """Print the traceback of an error in displaying; the cell goes on, as in a notebook."""
        traceback.print_exc()


def shell() -> WorkerShell:
    """Return the worker's one shell; made at the first call."""
    made: WorkerShell = WorkerShell.instance()
    return made


def end_of_cell() -> None:
    """Trigger IPython's `post_execute`, at which figures are shown, and record the widgets' texts again.

    A widget's text is for pages and files that can't draw it: a progress bar is not at its beginning any more. A widget
    that can't make its text again keeps the first: tqdm's speaks for an object that may have been collected.
    """
    shell().events.trigger("post_execute")
    widgets = getattr(sys.modules.get("ipywidgets.widgets.widget"), "_instances", {})
    for name, model in _widgets.items():
        with contextlib.suppress(Exception):
            show_bundle("update_display_data", widgets[model]._repr_mimebundle_(), {}, name)


def sendable(data: dict[str, Any]) -> dict[str, Any]:
    """Return the bundle with pictures in base 64, as Jupyter sends them."""
    return {
        mime: base64.b64encode(value).decode() if isinstance(value, bytes) else value for mime, value in data.items()
    }
