"""Runs Slurm's commands: requests allocations, reads their nodes and end times, gives them back."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from jupyter_elastic.hostfiles.hosts_on_demand import HostSource
from jupyter_elastic.hosts.allocation_rules import KnownAllocation
from jupyter_elastic.types.errors import BadRequest

SCHEME = "slurm:"
ASK_S = 30.0
"""Seconds that Slurm's controller may take to answer."""
HOW = "salloc --no-shell --nodes=2 --time=1:00:00"
JOB_NAME = "jupyter-elastic"
_GONE = "Invalid job id specified"
_WAITS = {"PENDING", "CONFIGURING", "RUNNING", "REQUEUED", "RESIZING", "SUSPENDED", "STOPPED"}

log = logging.getLogger(__name__)


def number_of(target: str, environment: Mapping[str, str]) -> str:
    """Return the allocation that `slurm:` or `slurm:NUMBER` means. BadRequest if it means none."""
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
    """Return an allocation's end, as `parsed`, and its nodes. BadRequest if it does not run or Slurm is silent."""
    listed = _said("squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T|%N|%e")
    until, nodes = parsed(number, listed)
    return until, _said("scontrol", "show", "hostnames", nodes).split()


def parsed(number: str, listed: str) -> tuple[float | None, str]:
    """Parse `squeue`'s line: the allocation's end (seconds since the epoch, None: no end), and its nodes in short form.

    BadRequest if the allocation does not run.
    """
    state, _, rest = (listed.strip().splitlines() or [""])[0].partition("|")
    nodes, _, end = rest.rpartition("|")
    if state != "RUNNING" or not nodes:
        what = f"is {state.lower()}" if state else "is none that Slurm knows"
        raise BadRequest(f"allocation {number} {what}; `squeue --me` lists yours, and `{HOW}` makes one")
    return float(end) if end.isdecimal() else None, nodes


def submit(source: HostSource, *, test_only: bool = False) -> str:
    """Request an allocation of one node; return its number, with `test_only` Slurm's text on a dry run. BadRequest."""
    command = [
        "sbatch", "--parsable", "--nodes=1", f"--time={source.time_limit}", f"--job-name={JOB_NAME}",
        "--output=/dev/null", "--no-requeue", "--chdir=/", *source.options,
    ]  # fmt: skip
    if test_only:
        command.append("--test-only")
    said = _said(*command, "--wrap=exec sleep infinity", both=test_only)
    return said.strip() if test_only else said.strip().partition(";")[0]


def allocations(numbers: Sequence[str]) -> dict[str, KnownAllocation]:
    """Return those of the allocations that wait or run. BadRequest if Slurm does not answer: then nothing is known."""
    if not numbers:
        return {}
    listed = _said("squeue", "--noheader", "--states=all", f"--jobs={','.join(numbers)}", "--format=%i|%T|%e|%N")
    return living(listed)


def living(listed: str) -> dict[str, KnownAllocation]:
    """Parse `squeue`'s lines on allocations of one node, by number; ended ones are left out."""
    found = {}
    for line in listed.splitlines():
        number, state, end, node = (line.strip().split("|", 3) + [""] * 4)[:4]
        runs = state == "RUNNING" and bool(node)
        if runs or state in _WAITS:
            until = float(end) if end.isdecimal() and runs else None
            way = f"{SCHEME}//{number}/{node}" if runs else ""
            found[number] = KnownAllocation(runs=runs, node=node, url=way, until=until)
    return found


def cancel(number: str) -> None:
    """Give the allocation back; one that has already ended is ignored."""
    try:
        _said("scancel", "--quiet", number)
    except BadRequest as problem:
        log.warning("%s", problem)


def called(source: HostSource, number: str, node: str) -> str:  # noqa: ARG001 - as `Provider` has it
    """Return the name of the host that an allocation brought."""
    return f"{node}-{number}"


def slots(source: HostSource, node: str, gpus: int, cores: int) -> int:  # noqa: ARG001 - as above
    """Return the host's slots: a host agent finds only what Slurm gave to the allocation."""
    return gpus or max(1, cores)


def processors(tested: str) -> int:
    """Parse the processors that Slurm would give from the text of `submit(test_only=True)`; 1 if it names none."""
    found = re.search(r"using (\d+) processors", tested)
    return max(1, int(found[1])) if found else 1


def _said(*command: str, both: bool = False) -> str:
    """Run a Slurm command; return its stdout, with `both` also its stderr. Times are seconds since the epoch."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("SBATCH_", "SLURM_JOB"))}
    environment = {**ours, "SLURM_TIME_FORMAT": "%s"}
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
    return done.stdout + (done.stderr if both else "")
