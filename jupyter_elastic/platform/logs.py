"""Sets up a service's log: lines for people, or one JSON object a line for log collectors.

A line about a job or a user names them in its `extra`: `log.info("...", extra={"job": 3, "user": "ada"})`. In JSON they
are fields of their own, so that nobody has to find them in the message.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from logging.handlers import MemoryHandler
from types import TracebackType
from typing import Any, Literal, TypeAlias, get_args

Format: TypeAlias = Literal["text", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)
FIELDS = ("user", "job", "attempt")
"""Fields of JSON lines that `extra` may set."""
MAX_HELD = 1000
"""Maximum number of lines that wait for the log's format."""


class JsonLine(logging.Formatter):
    """`{"time": ..., "level": ..., "logger": ..., "message": ...}`, with those of `FIELDS` that are set.

    `time` is UTC in ISO 8601; `exception` is a traceback. ASCII, so that no text of a user ends a line or controls a
    terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format the line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) not in {None, ""}}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up(kind: Format, handlers: Sequence[logging.Handler], level: int = logging.INFO) -> None:
    """Let this process log through these handlers.

    The JSON log also gets texts that would go to stderr otherwise: warnings, and exceptions that nobody catches.
    """
    _format(kind, handlers)
    logging.basicConfig(level=level, handlers=handlers, force=True)
    if kind == "json":
        logging.captureWarnings(capture=True)
        sys.excepthook = _uncaught
        threading.excepthook = lambda problem: _uncaught(problem.exc_type, problem.exc_value, problem.exc_traceback)


def set_up_later(handlers: Sequence[logging.Handler]) -> Callable[[Format], None]:
    """Let this process log through these handlers, in a format that is set later.

    Lines wait for the format, or the process's end; a warning is written at once as text, with the lines before it.

    Returns:
        A function to call with the format.
    """
    _format("text", handlers)
    held = [MemoryHandler(MAX_HELD, logging.WARNING, handler) for handler in handlers]
    logging.basicConfig(level=logging.INFO, handlers=held, force=True)
    return lambda kind: set_up(kind, handlers)


def _format(kind: Format, handlers: Sequence[logging.Handler]) -> None:
    formatter = JsonLine() if kind == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in handlers:
        handler.setFormatter(formatter)


def say(text: str, kind: Format) -> None:
    """Write to stderr why this process does not run, before or instead of logging."""
    record = logging.LogRecord("jupyter_elastic", logging.ERROR, "", 0, text, None, None)
    sys.stderr.write((JsonLine().format(record) if kind == "json" else text) + "\n")


def _uncaught(kind: type[BaseException], problem: BaseException | None, trace: TracebackType | None) -> None:
    said = (kind, problem if problem is not None else kind(), trace)
    logging.getLogger("jupyter_elastic").critical("an error that nobody caught", exc_info=said)
