"""Finds out what the tool before the kernel can show. Knows IPython and Jupyter's messages alone."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


def surface(shell: Any) -> str:
    """Return `widget`, `static` (a front end that runs no widgets for us) or `terminal`."""
    if in_process(shell):
        terminal = sys.modules.get("IPython.terminal.interactiveshell")
        return "terminal" if terminal and isinstance(shell, terminal.TerminalInteractiveShell) else "static"
    # Voilà runs cells as nbclient does, and then widgets in its page.
    alone = _alone(shell) and not os.environ.get("SERVER_SOFTWARE", "").startswith("voila")
    return "static" if alone or "google.colab" in sys.modules else "widget"


def _alone(shell: Any) -> bool:
    """Return whether nobody can answer a question, as under nbclient and papermill: nobody sees widgets either."""
    return not request(shell).get("content", {}).get("allow_stdin", True)


def in_process(shell: Any) -> bool:
    """Return whether there is no kernel: the process itself prints or keeps the shell's displays."""
    return getattr(shell, "kernel", None) is None


def request(shell: Any) -> dict[str, Any]:
    """Return the request that runs this cell, as a Jupyter message; empty if the kernel does not provide it."""
    holder: Any
    for holder in (shell, getattr(shell, "kernel", None)):
        with contextlib.suppress(Exception):
            return dict(holder.get_parent())
    return {}


def cell_id(shell: Any) -> str:
    """Return the cell's id in its notebook; empty if the front end has none (consoles) or does not report it."""
    with contextlib.suppress(Exception):
        return str(request(shell)["metadata"].get("cellId", ""))[:200]
    return ""


def renews(shell: Any) -> bool | None:
    """Return whether the front end updates an existing display; None: unknown (a page does, a console does not).

    If the kernel does not pass on the front end's metadata, a notebook opened by a Jupyter server counts as updating.
    """
    if in_process(shell):
        return False
    if surface(shell) == "static" or _alone(shell):
        return True
    if "metadata" in request(shell):
        return True if cell_id(shell) else None
    return "JPY_SESSION_NAME" in os.environ
