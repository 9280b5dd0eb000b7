"""Words the reports of a cell that failed or was interrupted, with hints for what people run into.

Knows the exception and its text; must not know the worker's end.
"""

from __future__ import annotations

import re

from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.types.errors import message_of
from jupyter_elastic.worker import tracebacks

MAX_TRACEBACK = 100_000
"""Maximum characters that are sent; the rank's stderr has the whole traceback."""

_NOT_SENT = re.compile(r"Can't get attribute '(\w+)' on <module '__main__'")


def note_not_sent(problem: BaseException) -> None:
    """Add a note to the failure of a cell that needs a name which stayed in the notebook."""
    if isinstance(problem, AttributeError) and (lacks := _NOT_SENT.match(str(problem))):
        name = lacks[1]
        problem.add_note(f"`{name}` of the notebook was not sent: name it in the cell too, or send it by --in {name}")


def interrupted(rank: int, problem: BaseException, text: str) -> messages.Interrupted:
    """Return the report of a cell that was interrupted; `text` is the traceback."""
    return messages.Interrupted(
        rank=rank,
        error="KeyboardInterrupt",
        message=message_of(problem)[:MAX_TRACEBACK],
        traceback=text[-MAX_TRACEBACK:],
    )


def failed(rank: int, problem: BaseException, text: str, *, broken: bool, late: bool) -> messages.Failed:
    """Return the report of a cell that failed; `broken`: because its group broke; `late`: the worker joined late."""
    return messages.Failed(
        rank=rank,
        error=type(problem).__name__,
        message=(message_of(problem) + (_late_hint(rank, problem) if late else ""))[:MAX_TRACEBACK],
        traceback=text[-MAX_TRACEBACK:],
        broken_group=broken,
        echo=broken or tracebacks.is_echo(problem),
    )


def _late_hint(rank: int, problem: BaseException) -> str:
    """Return why a name may be missing on this rank only."""
    if not isinstance(problem, NameError):
        return ""
    return f" (rank {rank} came to the session in an earlier cell, with what training.share had named)"
