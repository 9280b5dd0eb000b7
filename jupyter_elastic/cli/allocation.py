"""An allocation of Slurm's, as its own commands describe it: which nodes it has, and when it ends."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from jupyter_elastic.types.errors import BadRequest

SCHEME = "slurm:"
ASK_S = 30.0
"""How long Slurm's controller may take to answer."""
HOW = "salloc --no-shell --nodes=2 --time=1:00:00"
_GONE = "Invalid job id specified"


def number_of(target: str, environment: Mapping[str, str]) -> str:
    """The allocation that `slurm:` or `slurm:NUMBER` means. BadRequest when it means none."""
    given = target.removeprefix(SCHEME) or environment.get("SLURM_JOB_ID", "")
    if not given:
        raise BadRequest(
            f"this is no allocation of Slurm's ($SLURM_JOB_ID is not set): make one, as by `{HOW}`, and name it: "
            "jupyter elastic host add slurm:NUMBER"
        )
    if not re.fullmatch("[0-9]{1,15}", given):
        raise BadRequest(f"{given!r} is no number of an allocation; `squeue --me` lists yours: slurm:4711")
    return given


def read(number: str) -> tuple[float | None, list[str]]:
    """Its end, as `parsed`, and the names of its nodes. BadRequest if it does not run, or Slurm does not answer."""
    listed = _said("squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T|%N|%e")
    until, nodes = parsed(number, listed)
    return until, _said("scontrol", "show", "hostnames", nodes).split()


def parsed(number: str, listed: str) -> tuple[float | None, str]:
    """What `squeue` says of it: its end, in seconds since the epoch (None: it has none), and its nodes, in short.

    BadRequest if it does not run.
    """
    state, _, rest = (listed.strip().splitlines() or [""])[0].partition("|")
    nodes, _, end = rest.rpartition("|")
    if state != "RUNNING" or not nodes:
        what = f"is {state.lower()}" if state else "is none that Slurm knows"
        raise BadRequest(f"allocation {number} {what}; `squeue --me` lists yours, and `{HOW}` makes one")
    return float(end) if end.isdecimal() else None, nodes


def _said(*command: str) -> str:
    """What a command of Slurm's prints; times in seconds since the epoch."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=ASK_S, env=environment
        )
    except FileNotFoundError as problem:
        what = f"there is no {command[0]} here: run this where Slurm's commands are, as on its login node"
        raise BadRequest(what) from problem
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise BadRequest(f"{command[0]} does not answer: {problem}") from problem
    if done.returncode != 0 and _GONE not in done.stderr:
        raise BadRequest(f"{command[0]} failed: {done.stderr.strip()[:1000]}")
    return done.stdout
