"""A line of a log as JSON: one object, whatever is said, by whom and about whom."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from jupyter_elastic.platform.logs import JsonLine


def line(message: str, *arguments: object, **extra: object) -> dict[str, object]:
    record = logging.LogRecord("a.b", logging.WARNING, "", 0, message, arguments, None)
    record.__dict__.update(extra)
    said = JsonLine().format(record)
    assert said.isascii()
    assert said.isprintable()
    found: dict[str, object] = json.loads(said)
    return found


def test_a_line_says_when_how_grave_who_what_and_about_whom() -> None:
    found = line("job %d: %s", 3, "lost", job=3, user="ada", attempt=1, other="left out")
    assert str(found.pop("time")).endswith("+00:00")
    assert found == {
        "level": "WARNING", "logger": "a.b", "message": "job 3: lost", "user": "ada", "job": 3, "attempt": 1,
    }  # fmt: skip


def test_what_a_line_is_not_about_is_left_out() -> None:
    assert not {"job", "user", "attempt"} & line("the shares have changed", job=None, user="").keys()


def test_no_text_ends_the_line_or_commands_a_terminal() -> None:
    text = 'a"}\n{"level": "x"\r\x1b[2J\u2028\ud800 ü'
    assert line("%s", text)["message"] == text


def test_what_goes_past_the_log_is_a_line_too() -> None:
    """A process that has set itself up so says warnings, errors of threads and its own end as JSON."""
    script = """
import logging, threading, warnings
from jupyter_elastic.platform import logs
logs.set_up("json", [logging.StreamHandler()])
logs.say("nothing runs", "json")
warnings.warn("take care")
def fail(): raise ValueError("in a thread")
thread = threading.Thread(target=fail)
thread.start(); thread.join()
raise KeyError("at the end")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    said = [json.loads(one) for one in done.stderr.splitlines()]
    assert said[0]["message"] == "nothing runs"
    assert "take care" in said[1]["message"]
    assert "ValueError: in a thread" in said[2]["exception"]
    assert "KeyError: 'at the end'" in said[3]["exception"]
    assert len(said) == 4
