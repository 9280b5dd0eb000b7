"""Names the variables of a session for a worker that joins while one of its cells runs: `training.share`."""

from __future__ import annotations

import sys
from typing import Any

from jupyter_elastic.types.errors import BadRequest

names: dict[str, None] = {}
"""Names that cells of this worker's session have shared so far, in that order."""


def share(*variables: Any) -> None:
    """Let a session (`%%distribute --session NAME --gpus 1:4`) grow: name the variables for joining workers.

        training.share(model, optimizer, "batch_size")

    As each later cell begins, rank 0 hands over these variables, with all modules, functions and classes of the
    session; a joining worker runs that cell from its top with them, and joins at its elastic loop. The names hold for
    all later cells, and add up. Nothing happens in a session whose size is fixed, and outside of sessions.

    Args:
        variables: Variables of the session, or their names. Numbers and texts are given by name.

    Raises:
        BadRequest: One is no variable of the cell.
    """
    there = sys._getframe(1).f_globals
    for variable in variables:
        found = _names(variable, there)
        names.update(dict.fromkeys(found))


def _names(variable: Any, there: dict[str, Any]) -> list[str]:
    if isinstance(variable, str):
        found = [variable] if variable in there else []
    elif isinstance(variable, bool | int | float | complex | bytes | None):
        raise BadRequest(f"training.share({variable!r}): give the variable's name, as in training.share('batch_size').")
    else:
        found = [name for name, value in there.items() if value is variable and not name.startswith("_")]
    if not found:
        shown = repr(variable) if isinstance(variable, str) else f"a {type(variable).__name__}"
        raise BadRequest(f"training.share: {shown} is no variable of this cell; give variables, or their names.")
    return found
