"""Make texts of people safe to show to others in a terminal: without control characters and changes of direction."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from jupyter_elastic.types.vocabulary import GpuProcess

FOREIGN = "in use outside the pool"
_LOST = "host lost: "
_TURNS = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Ends of lines, and all that Unicode calls Bidi_Control."""
_CONTROL = re.compile(f"[\x00-\x1f\x7f-\x9f{_TURNS}]")
"""Characters that move a cursor, begin an escape sequence or a new line, or change the direction of writing."""
_NUMBER = re.compile(r"(\d+)")
_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_TURNS}]")
"""Control characters without the new lines and tabs of a longer text."""
_WRITTEN = {
    pattern: {code: f"\\u{code:04x}" for code in range(0x206A) if pattern.match(chr(code))}
    for pattern in (_CONTROL, _IN_LINES)
}


def has_control(text: str) -> bool:
    """True if the text holds a control character."""
    return _CONTROL.search(text) is not None


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return the text with its control characters written as in JSON (`\u001b`); `lines`: new lines and tabs stay."""
    pattern = _IN_LINES if lines else _CONTROL
    return text.translate(_WRITTEN[pattern]) if pattern.search(text) else text


@functools.lru_cache(maxsize=10_000)  # a screen sorts all slots of the pool
def natural(name: str) -> tuple[tuple[tuple[bool, int, str], ...], ...]:
    """Return a sort key for hosts and slots: `lab:2` before `lab:10`, `host9` before `host10`, `lab` before `lab2`."""
    return tuple(
        tuple(
            (not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _NUMBER.split(word) if part
        )
        for word in name.split(":")
    )


def count(number: int, word: str = "slot") -> str:
    """Format a number with its noun: `1 slot`, `2 slots`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def span(seconds: float) -> str:
    """Format a duration as people say it: `80 s`, `12 min`, `2.5 h`."""
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def in_use_by(processes: Sequence[GpuProcess]) -> str:
    """Explain why a slot that nobody has leased can't be leased."""
    return f"{FOREIGN} by {_named(processes)}"


def also_used_by(processes: Sequence[GpuProcess]) -> str:
    """Describe foreign use of a leased slot; empty if there are no such processes."""
    return f"also used by {_named(processes)}, who has not leased it" if processes else ""


def pinned_by(session: str, why: str) -> str:
    """Explain why a session retains a slot on which no cell runs."""
    return f"kept by the session {session!r}" + (f": {why}" if why else "")


def host_lost(slots: Sequence[str], why: str) -> str:
    """Explain why a job leaves slots of a host that failed or is out of reach: `host lost: h1:0 (no route)`."""
    return f"{_LOST}{', '.join(slots)}" + (f" ({why[:2000]})" if why else "")


def for_others(reason: str) -> str:
    """Return a job's reason as other users may read it: without the cause of a host's failure, which is its owner's.

    The cause is a part of the text, not a field, because journals and notebooks of earlier versions have it so.
    """
    return reason.partition(" (")[0] if reason.startswith(_LOST) else reason


def _named(processes: Sequence[GpuProcess]) -> str:
    return ", ".join(map(str, processes))
