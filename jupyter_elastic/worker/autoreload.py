"""Modules that were edited are loaded again before a session's next cell, where the notebook has `%autoreload 2`.

By IPython's own reloader, so that functions and instances that cells hold are new too. Must not know cells.
"""

from __future__ import annotations

import sys
from typing import Any


class Autoreload:
    """Of one worker."""

    def __init__(self) -> None:
        self._reloader: Any = None

    def before_cell(self, *, wanted: bool) -> None:
        """Load again what was edited since the last cell; what can't be loaded is said, and stays as it was."""
        if not wanted:
            self._reloader = None
        elif self._reloader is None:
            from IPython.extensions.autoreload import ModuleReloader

            self._reloader = ModuleReloader()
        else:
            self._reloader.check(check_all=True)

    def after_cell(self) -> None:
        """Note how old the modules are that the cell has imported."""
        if self._reloader is None:
            return
        times = self._reloader.modules_mtimes
        for name in sys.modules.keys() - times.keys():
            file, changed = self._reloader.filename_and_mtime(sys.modules[name])
            if file is not None:
                times[name] = changed
