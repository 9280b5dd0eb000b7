"""Parses the values of options: times, names, ranges, labels, variables. Must not know which option has which."""

from __future__ import annotations

import json
import keyword
import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from jupyter_elastic.jobfiles.sessions import NAME
from jupyter_elastic.types import MAX_HOLD_S
from jupyter_elastic.types.errors import BadRequest

_TIME = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+(?:\.\d+)?)s?)?")
MAX_SERVERS = 100_000
MAX_SIZES = 1_000
"""Maximum number of sizes that the daemon accepts."""


def python_name(name: str) -> str:
    """Return the text; ArgumentTypeError if it is no Python name."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ArgumentTypeError(f"{name}: that is no Python name")
    return name


def session_name(name: str) -> str:
    """Return the text; ArgumentTypeError if it is no name of a session."""
    if not NAME.fullmatch(name):
        raise ArgumentTypeError(f"{name}: a session's name has up to 32 letters, digits, `_`, `-` and `.`")
    return name


def python_names(text: str) -> list[str]:
    """Parse `a, b` as names; ArgumentTypeError says what is wrong."""
    return [python_name(name.strip()) for name in text.split(",") if name.strip()]


def seconds_from(text: str) -> float:
    """Parse `90s`, `1h30m`, `1:30:00` as seconds; ArgumentTypeError says what is wrong."""
    match = _TIME.fullmatch(text.replace(" ", ""))
    seconds = 0.0
    if match is not None:
        days, hours, minutes, rest = match.groups()
        seconds = 86400 * int(days or 0) + 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(rest or 0)
    elif re.fullmatch(r"\d+(:\d{2}){1,2}", text):  # 1:30 or 1:30:00, as Slurm has it
        for part in text.split(":"):
            seconds = 60 * seconds + int(part)
    if seconds <= 0:
        raise ArgumentTypeError(f"{text}: write a time such as 90s, 10m, 1h30m or 1:30:00")
    return seconds


def pin_seconds(text: str) -> float:
    """Parse a time or `0` as seconds; ArgumentTypeError says what is wrong."""
    return 0.0 if text == "0" else seconds_from(text)


def hold_seconds(text: str) -> float:
    """Parse a time up to `MAX_HOLD_S` as seconds; ArgumentTypeError says what is wrong."""
    if (seconds := seconds_from(text)) > MAX_HOLD_S:
        raise ArgumentTypeError(f"{text}: slots in which nothing runs are kept for 10m at most")
    return seconds


def labels_from(words: Sequence[str]) -> dict[str, str]:
    """Parse `["gpu=A100", "rack=3"]` as a dictionary; BadRequest says what is wrong."""
    found = {}
    for word in ",".join(words).split(",") if words else ():
        name, equals, value = (part.strip() for part in word.partition("="))
        if not (equals and name and value):
            raise BadRequest(f"{word!r} is no label: write a name and a value, as in gpu=A100")
        found[name] = value
    return found


def ranks_from(text: str) -> tuple[int, ...]:
    """Parse `2,0` as (0, 2); BadRequest says what is wrong."""
    ranks = [rank.strip() for rank in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,5}", rank) for rank in ranks):
        raise BadRequest(f"--rank {text}: write ranks such as 0 or 0,2")
    return tuple(sorted({int(rank) for rank in ranks}))


def sizes_from(text: str) -> tuple[int, ...]:
    """Parse `4,1,2` as (1, 2, 4); BadRequest says what is wrong."""
    sizes = [size.strip() for size in text.split(",")]
    if not all(size.isdecimal() and 1 <= int(size) <= 100_000 for size in sizes) or len(sizes) > MAX_SIZES:
        raise BadRequest(f"--sizes {text}: write numbers such as 1,2,4")
    return tuple(sorted({int(size) for size in sizes}))


def servers_from(text: str) -> tuple[int, int]:
    """Parse `1:2` as (1, 2); BadRequest says what is wrong."""
    match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= MAX_SERVERS:
        raise BadRequest(f"--servers {text}: write a number from 1 on (--servers 1) or a range (--servers 1:2)")
    return low, high


def option_values(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse `K=V` with JSON values if possible, else text."""
    options: dict[str, Any] = {}
    for given in arguments:
        name, equals, value = given.partition("=")
        if not name or not equals:
            raise BadRequest(f"--opt {given}: write NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def deadline_from(text: str, now: float) -> float:
    """Parse a deadline: a duration from now, the next such time of day here, or a date (its end) or date and time."""
    here = datetime.fromtimestamp(now).astimezone()
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
            hour, minute, *second = map(int, text.split(":"))
            due = here.replace(hour=hour, minute=minute, second=second[0] if second else 0, microsecond=0)
            due += timedelta(days=due <= here)
        elif re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            due = (datetime.fromisoformat(text) + timedelta(days=1)).astimezone()
        elif re.match(r"\d{4}-\d{2}-\d{2}[T ]", text):
            due = datetime.fromisoformat(text).astimezone()
        else:
            return now + seconds_from(text)
    except (ValueError, OverflowError, ArgumentTypeError):
        raise BadRequest(f"--deadline {text}: write a time such as 2h, 18:00 or 2026-12-24T18:00") from None
    if due <= here:
        raise BadRequest(f"--deadline {text} lies in the past; it is {here:%Y-%m-%d %H:%M} here")
    return due.timestamp()


def environment_from(given: list[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Parse `K=V`, `K` and `K*` as variables, values from `environ`; BadRequest says what is wrong."""
    found: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if "*" in name and not equals:
            named = {one: environ[one] for one in environ if fnmatchcase(one, name)}
            if not named:
                raise BadRequest(f"--env {name}: no variable like {name} is set here")
            found |= named
            continue
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise BadRequest(f"--env {word}: write NAME=VALUE")
        if not equals and name not in environ:
            raise BadRequest(f"--env {name}: no such variable is set here; write {name}=VALUE")
        found[name] = value if equals else environ[name]
    return found
