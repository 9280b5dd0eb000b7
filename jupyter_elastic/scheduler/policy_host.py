"""An untrusted policy runs here: in a child process that can be ended, and that can use little where it is a text.

The parent's side (`HostedPolicy`) looks like every policy. Parent and child speak JSON lines over pipes: never a
pickle. The limits guard against accidents and common mischief; they are no prison, so that only administrators may
bring a source (`auth`). A policy that somebody has installed runs without them: its libraries may need threads and
files.
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
from typing import Any

import msgspec

from jupyter_elastic.scheduler import plugins
from jupyter_elastic.scheduler.policies.source import NoOptions, from_source
from jupyter_elastic.types import Plan, Policy, View
from jupyter_elastic.types.errors import BadRequest

MEMORY = 1024**3
"""Bytes of address space."""
CPU_S = 300
"""Seconds of processor time until a child has to be replaced."""
LINE = 8 * 1024 * 1024
"""Bytes of the longest line that the parent reads."""
START_S = 30.0


class HostedPolicy:
    """A policy in a child of its own, by name or from its text. One that hangs or dies is replaced when next asked."""

    Options = NoOptions
    summary = "Given as source text."
    work_conserving = False

    def __init__(self, name: str, options: dict[str, Any], source: str, deadline_s: float) -> None:
        """Start the child and let it make the policy; BadRequest says why it can't."""
        self.name = name
        self.interval_s: float | None = None
        self._first = msgspec.json.encode({"name": name, "options": options, "source": source})
        self._deadline_s = deadline_s
        self._text = bool(source)
        self._child: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._begin(deadline_s)

    def plan(self, view: View) -> Plan:
        """The child's plan. RuntimeError with its traceback's end, TimeoutError, or whatever shows that it is none."""
        if self._child is None:
            self._begin(self._deadline_s)
        said = self._ask(msgspec.json.encode(view), self._deadline_s)
        if "error" in said:
            raise RuntimeError(str(said["error"])[:2000])
        return msgspec.convert(said.get("plan"), Plan, strict=False)

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            child.wait()

    def _begin(self, deadline_s: float) -> None:
        self._rest = b""
        self._child = subprocess.Popen(
            [sys.executable, *(["-I"] if self._text else []), "-m", "jupyter_elastic.scheduler.policy_host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"} if self._text else None,
        )
        try:
            self._read(START_S)  # it has imported what it needs; from now on its time is the text's
            said = self._ask(self._first, max(deadline_s, 1.0))
        except (TimeoutError, OSError, ValueError) as problem:
            self.close()
            raise BadRequest(f"policy {self.name}: it could not be made ({problem})") from problem
        if "error" in said:
            self.close()
            raise BadRequest(str(said["error"])[:2000])
        interval = said.get("interval_s")
        self.interval_s = float(interval) if isinstance(interval, int | float) and interval > 0 else None

    def _ask(self, line: bytes, limit_s: float) -> dict[str, Any]:
        child = self._child
        if child is None or child.stdin is None:
            raise OSError("its process is gone")
        try:
            child.stdin.write(line + b"\n")
            child.stdin.flush()
            return self._read(limit_s)
        except BaseException:
            self.close()
            raise

    def _read(self, limit_s: float) -> dict[str, Any]:
        child = self._child
        if child is None or child.stdout is None:
            raise OSError("its process is gone")
        limit = time.monotonic() + limit_s
        pieces = [self._rest]
        size = len(self._rest)
        while b"\n" not in pieces[-1]:
            ready, _, _ = select.select([child.stdout], [], [], max(limit - time.monotonic(), 0.0))
            if not ready:
                raise TimeoutError(f"it gave no plan within {limit_s:g} s")
            piece = os.read(child.stdout.fileno(), 1 << 16)
            if not piece:
                raise OSError("its process ended; did it use more than 1 GiB of memory, or exit?")
            pieces.append(piece)
            size += len(piece)
            if size > LINE:
                raise ValueError(f"it said more than {LINE:,} bytes")
        line, self._rest = b"".join(pieces).split(b"\n", 1)
        said = msgspec.json.decode(line)
        if not isinstance(said, dict):
            raise ValueError("what it said is no answer")  # noqa: TRY004 - of the same kind as a broken line
        return said


# --- the child's side -------------------------------------------------------------------------------------------------


def main() -> None:
    """Make the policy, then answer views until the parent goes."""
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # a print in the policy must not speak for us
        os.dup2(nothing, number)
    _say(answers, {"ready": True})
    first = msgspec.json.decode(questions.readline())
    name, options, source = first["name"], first["options"], first["source"]
    try:
        if source:
            _limit()
            policy = from_source(name, source, options)
        else:
            policy = plugins.make_policy(name, options)
    except BaseException as problem:  # it may call sys.exit
        _say(answers, {"error": str(problem) or type(problem).__name__})
        return
    _say(answers, {"ok": True, "interval_s": getattr(policy, "interval_s", None)})
    decoder = msgspec.json.Decoder(View)
    while line := questions.readline():
        _say(answers, _answer(policy, decoder.decode(line)))


def _answer(policy: Policy, view: View) -> dict[str, Any]:
    try:
        plan: Any = policy.plan(view)
        if not isinstance(plan, Plan):
            return {"error": f"plan() gave back {type(plan).__name__}, not a Plan or a dictionary"}
        return {"plan": msgspec.to_builtins(plan, str_keys=True)}
    except BaseException as problem:
        last = traceback.extract_tb(problem.__traceback__)[-1:]
        where = f" (line {last[0].lineno})" if last and last[0].filename.startswith("<policy") else ""
        return {"error": f"{type(problem).__name__}: {problem}{where}"}


def _say(file: Any, said: dict[str, Any]) -> None:
    file.write(msgspec.json.encode(said) + b"\n")
    file.flush()


def _limit() -> None:
    """Little memory, some processor time, nothing written to any file, no children, no core dump."""
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
