"""Reloads edited modules before a session's next cell, if the notebook has `%autoreload 2`.

It uses IPython's own reloader, so functions and instances that cells hold are new too. Must not know cells.
"""

from __future__ import annotations

import sys
from typing import Any


class Autoreload:
    """The reloader of one worker."""

    def __init__(self) -> None:
        self._reloader: Any = None

    def before_cell(self, *, wanted: bool) -> None:
        """Reload modules edited since the last cell; report a module that can't be reloaded: it stays as it was."""
        if not wanted:
            self._reloader = None
        elif self._reloader is None:
            from IPython.extensions.autoreload import ModuleReloader

            self._reloader = ModuleReloader()
        else:
            self._reloader.check(check_all=True)

    def after_cell(self) -> None:
        """Record the ages of the modules that the cell has imported."""
        if self._reloader is None:
            return
        times = self._reloader.modules_mtimes
        for name in sys.modules.keys() - times.keys():
            file, changed = self._reloader.filename_and_mtime(sys.modules[name])
            if file is not None:
                times[name] = changed
