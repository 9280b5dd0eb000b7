"""Run an untrusted policy in a child process that can be ended and, if given as text, is restricted.

The parent's side (`HostedPolicy`) has the interface of every policy. Parent and child exchange JSON lines over pipes:
never a pickle. The limits guard against accidents and common mischief; they are no prison, so only administrators may
give a source (`auth`). An installed policy runs without them: its libraries may need threads and files.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import subprocess
import sys
import time
import traceback
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.scheduler.planning.policy_source import from_source
from jupyter_elastic.types import Plan, Policy, View
from jupyter_elastic.types.errors import BadRequest

MEMORY = 1024**3
"""Maximum bytes of address space."""
CPU_S = 300
"""Seconds of processor time after which a child has to be replaced."""
LINE = 8 * 1024 * 1024
"""Maximum bytes of a line that the parent reads."""
START_S = 30.0


class _First(Struct):
    """First line to the child: the policy that it is to make. Views follow."""

    name: str
    options: dict[str, Any]
    source: str


class _Answer(Struct, omit_defaults=True):
    """A line of the child: an empty one when it has started, then one for each line that it gets."""

    error: str = ""
    interval_s: float | None = None
    plan: Plan | None = None


class HostedPolicy:
    """A policy in a child process, by name or from its source; a child that hangs or dies is replaced on demand."""

    def __init__(self, name: str, options: dict[str, Any], source: str, deadline_s: float) -> None:
        """Start the child and let it make the policy; BadRequest tells why it can't."""
        self.name = name
        self.interval_s: float | None = None
        self._first = _First(name=name, options=options, source=source)
        self._deadline_s = deadline_s
        self._child: subprocess.Popen[bytes] | None = None
        self._begin()

    def plan(self, view: View) -> Plan:
        """Return the child's plan. RuntimeError with its traceback's end, TimeoutError, or an error of decoding."""
        if self._child is None:
            self._begin()
        answer = self._ask(view, self._deadline_s)
        if answer.plan is None:
            raise RuntimeError(answer.error[:2000])
        return answer.plan

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with contextlib.suppress(OSError), child:  # closes the pipes and waits
                pass

    def _begin(self) -> None:
        text = bool(self._first.source)
        self._child = subprocess.Popen(
            [sys.executable, *(["-I"] if text else []), "-m", "jupyter_elastic.scheduler.planning.policy_host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"} if text else None,
        )
        try:
            self._read(START_S)  # it has imported what it needs; from now on its time is the text's
            answer = self._ask(self._first, max(self._deadline_s, 1.0))
        except (TimeoutError, OSError, ValueError) as problem:
            self.close()
            raise BadRequest(f"policy {self.name}: it could not be made ({problem})") from problem
        if answer.error:
            self.close()
            raise BadRequest(answer.error[:2000])
        self.interval_s = answer.interval_s if answer.interval_s and answer.interval_s > 0 else None

    def _ask(self, question: _First | View, limit_s: float) -> _Answer:
        child = self._child
        if child is None or child.stdin is None:
            raise OSError("its process is gone")
        try:
            child.stdin.write(msgspec.json.encode(question) + b"\n")
            child.stdin.flush()
            line = self._read(limit_s)
        except BaseException:
            self.close()
            raise
        return msgspec.json.decode(line, type=_Answer)

    def _read(self, limit_s: float) -> bytes:
        child = self._child
        if child is None or child.stdout is None:
            raise OSError("its process is gone")
        limit = time.monotonic() + limit_s
        line = bytearray()
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([child.stdout], [], [], max(limit - time.monotonic(), 0.0))
            if not ready:
                raise TimeoutError(f"it gave no plan within {limit_s:g} s")
            piece = os.read(child.stdout.fileno(), 1 << 16)
            if not piece:
                raise OSError("its process ended; did it use more than 1 GiB of memory, or exit?")
            line += piece
            if len(line) > LINE:
                raise ValueError(f"its answer has more than {LINE:,} bytes")
        return bytes(line)


# --- the child's side -------------------------------------------------------------------------------------------------


def main() -> None:
    """Make the policy, then answer views until the parent closes the pipe."""
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # a print in the policy must not speak for us
        os.dup2(nothing, number)
    _send(answers, msgspec.json.encode(_Answer()))
    first = msgspec.json.decode(questions.readline(), type=_First)
    try:
        if first.source:
            _limit()
            policy = from_source(first.name, first.source, first.options)
        else:
            policy = plugins.make_policy(first.name, first.options)
        made = msgspec.json.encode(_Answer(interval_s=getattr(policy, "interval_s", None)))
    except BaseException as problem:  # it may call sys.exit
        _send(answers, msgspec.json.encode(_Answer(error=str(problem) or type(problem).__name__)))
        return
    _send(answers, made)
    decoder = msgspec.json.Decoder(View)
    while line := questions.readline():
        _send(answers, _answer(policy, decoder.decode(line)))


def _answer(policy: Policy, view: View) -> bytes:
    try:
        plan: Any = policy.plan(view)
        if isinstance(plan, Plan):
            return msgspec.json.encode(_Answer(plan=plan))
        problem = f"plan() gave back {type(plan).__name__}, not a Plan or a dictionary"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" (line {last[0].lineno})" if last and last[0].filename.startswith("<policy") else ""
        problem = f"{type(error).__name__}: {error}{where}"
    return msgspec.json.encode(_Answer(error=problem))


def _send(file: BinaryIO, line: bytes) -> None:
    file.write(line + b"\n")
    file.flush()


def _limit() -> None:
    """Limit memory and processor time; forbid writes to files, children and core dumps."""
    for kind, amount in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (amount, amount))
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS


if __name__ == "__main__":
    main()
