"""Formats durations for people. Pure."""

from __future__ import annotations


def human_time(seconds: float) -> str:
    """Format a duration for people: `4.2 s`, `3 min 20 s`, `2 h`."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    size, unit, part, smaller = next(one for one in _TWO_UNITS if whole >= one[0])
    rest = whole % size // part
    return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")


_TWO_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def human_range(low: float, high: float) -> str:
    """Format a range of durations for people, no more exact than it can be: `about 3 to 5 min`."""
    low, high = max(0.0, low), max(0.0, high)
    for size, unit in ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86_400.0, "days")):
        if high < 90 * size or unit == "days" or (unit == "h" and high < 48 * size):
            break
    first, last = round(low / size), max(1, round(high / size))
    if first >= last:
        return f"about {last} {unit}"
    return f"less than {last} {unit}" if first == 0 else f"about {first} to {last} {unit}"


def not_known(before: int) -> str:
    """Return the text on a queued job's start when the forecast's range is empty."""
    return f"start not known yet, {before} {'job' if before == 1 else 'jobs'} before it"
