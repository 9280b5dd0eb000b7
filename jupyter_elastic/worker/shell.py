"""Runs the `!command` lines of a cell; their output goes where the worker's own goes.

Imported by the workers; knows only the standard library, and IPython's rule for `{name}` and `$name`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def system(command: str) -> None:
    """Run `!command`; its exit status is not judged, as in IPython."""
    sys.stdout.flush()
    subprocess.run(_expanded(command, _caller()), shell=True, check=False)  # noqa: S602 - the user wrote a shell line


def getoutput(command: str) -> list[str]:
    """Run `names = !command`, and return its output's lines."""
    done = subprocess.run(  # noqa: S602 - the user wrote a shell line
        _expanded(command, _caller()), shell=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.stdout.decode(errors="replace").splitlines()


def _caller() -> dict[str, Any]:
    frame = sys._getframe(2)
    return {**frame.f_globals, **frame.f_locals}


def _expanded(command: str, names: dict[str, Any]) -> str:
    """Replace `{name}` and `$name` as IPython does; leave them if they name nothing of ours."""
    if "{" not in command and "$" not in command:
        return command
    from IPython.utils.text import DollarFormatter

    try:
        return str(DollarFormatter().vformat(command, args=[], kwargs=names))
    except Exception:
        return command
