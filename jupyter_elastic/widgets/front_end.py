"""What the tool before the kernel can show, by what it says of itself. Knows IPython and Jupyter's messages alone."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


def surface(shell: Any) -> str:
    """`widget`, `static` (a front end that runs no widgets for us) or `terminal`."""
    if in_process(shell):
        terminal = sys.modules.get("IPython.terminal.interactiveshell")
        return "terminal" if terminal and isinstance(shell, terminal.TerminalInteractiveShell) else "static"
    # Voilà runs cells as nbclient does, and then widgets in its page.
    alone = _alone(shell) and not os.environ.get("SERVER_SOFTWARE", "").startswith("voila")
    return "static" if alone or "google.colab" in sys.modules else "widget"


def _alone(shell: Any) -> bool:
    """Whether nobody can answer a question, as nbclient and papermill say: nobody looks at widgets there either."""
    return not request(shell).get("content", {}).get("allow_stdin", True)


def in_process(shell: Any) -> bool:
    """Whether there is no kernel: what the shell is shown its process prints or keeps."""
    return getattr(shell, "kernel", None) is None


def request(shell: Any) -> dict[str, Any]:
    """The request that runs this cell, as Jupyter's messages have it; empty where the kernel does not say it."""
    holder: Any
    for holder in (shell, getattr(shell, "kernel", None)):
        with contextlib.suppress(Exception):
            return dict(holder.get_parent())
    return {}


def cell_id(shell: Any) -> str:
    """The cell's id in its notebook; empty where the front end has none (consoles) or does not say it."""
    with contextlib.suppress(Exception):
        return str(request(shell)["metadata"].get("cellId", ""))[:200]
    return ""


def renews(shell: Any) -> bool | None:
    """Whether the front end renews a display that stands; None: it may (a page), or may not (a console).

    Where the kernel does not pass on what the front end says, a notebook that a Jupyter server has opened does.
    """
    if in_process(shell):
        return False
    if surface(shell) == "static" or _alone(shell):
        return True
    if "metadata" in request(shell):
        return True if cell_id(shell) else None
    return "JPY_SESSION_NAME" in os.environ
