"""Makes nodes of Slurm's allocations hosts, reached by `srun`; requests allocations on demand, and gives them back."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from jupyter_elastic.hostfiles.host_providers import AgentCommand, Allocates, HostGroup, Offer, Target
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hostfiles.hosts_on_demand import HostSource, KnownAllocation, SourceRequest
from jupyter_elastic.types.errors import BadRequest

SCHEME = "slurm:"
ASK_S = 30.0
"""Seconds that Slurm's controller may take to answer."""
HOW = "salloc --no-shell --nodes=2 --time=1:00:00"
JOB_NAME = "jupyter-elastic"
AUTO, NAME = "slurm:auto", "slurm-auto"
"""URL and name of the source of nodes on demand."""
_SRUN = (
    "srun", "--quiet", "--unbuffered", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--mpi=none",
    "--cpu-bind=none", "--chdir=/",
)  # fmt: skip
"""Options of a step beside all others of the allocation, with its whole memory; buffered, output would come late."""
_STEP = ("SLURM_", "SRUN_")
_NODE = re.compile(r"slurm://([0-9]{1,15})/([A-Za-z0-9][A-Za-z0-9._-]{0,199})")
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


class SlurmTarget(Target, frozen=True, kw_only=True):
    """A node of an allocation."""

    allocation: str
    node: str

    def command(self, agent: Sequence[str], runtime: Path) -> AgentCommand:
        """Return the command of srun. Slurm's variables of a step around us would be options of srun."""
        del runtime
        argv = [*_SRUN, f"--jobid={self.allocation}", f"--nodelist={self.node}", *agent]
        ours = {name: os.environ[name] for name in os.environ if name == "SLURM_CONF" or not name.startswith(_STEP)}
        return AgentCommand(argv=argv, env=ours)

    def explain(self, stderr: str) -> str:
        """Return advice on an ended allocation, and on a node of another one."""
        if "has expired" in stderr or "Invalid job id" in stderr:
            return f" (the allocation {self.allocation} has ended: jupyter elastic host remove slurm:{self.allocation})"
        if "node configuration is not available" in stderr or "nodelist" in stderr:
            return (
                f" ({self.node} is no node of the allocation {self.allocation}: jupyter elastic host add "
                f"slurm:{self.allocation})"
            )
        return ""

    def belongs_to(self, group: str) -> bool:
        """Return True for `slurm:`, all allocations, and for this one."""
        return group in {SCHEME, f"{SCHEME}{self.allocation}"}


class Slurm(Allocates):
    """Nodes of Slurm's allocations."""

    form = "slurm://ALLOCATION/NODE"
    waits = "allocation {} waits in the queue of Slurm"

    def parse(self, host: HostAddress) -> SlurmTarget:
        """Parse `slurm://ALLOCATION/NODE`."""
        found = _NODE.fullmatch(host.url)
        if found is None:
            raise self.refused(host)
        return SlurmTarget(host=host, allocation=found[1], node=found[2])

    def named(self, scheme: str, text: str) -> tuple[str, str]:
        """Return `slurm:NUMBER`, all nodes of an allocation; `slurm:auto`, nodes on demand; or a single node."""
        if "/" in text:
            return text.partition("/")[2], f"{scheme}://{text}"
        return NAME if text == "auto" else "", f"{scheme}:{text}"

    def discover(self, asked: HostAddress, slots: int | None) -> HostGroup:
        """Return the nodes of the allocation, without this machine."""
        if asked.url.startswith(f"{SCHEME}//"):
            return super().discover(asked, slots)
        number = number_of(asked.url, os.environ)
        until, nodes = read(number)
        name = socket.gethostname()
        ours = {name, name.partition(".")[0], os.environ.get("SLURMD_NODENAME")}
        others = [
            replace(asked, name=node, url=f"{SCHEME}//{number}/{node}", until=until)
            for node in nodes
            if node not in ours
        ]
        if not others:
            raise BadRequest(f"allocation {number} has no node beside this machine: ask Slurm for more (--nodes=2)")
        return HostGroup(tuple(others), f"{SCHEME}{number}")

    def offer(self, asked: SourceRequest) -> Offer:
        """Ask Slurm by `sbatch --test-only` for such an allocation."""
        if asked.url not in {SCHEME, AUTO}:
            raise BadRequest(f"{asked.url} is there already: leave out what is for nodes on demand, `host add slurm`")
        if asked.time_limit_s is None or asked.max_hosts is None:
            raise BadRequest(f"{AUTO}: add --time-limit 1h --max-hosts 4, so that nobody pays for hosts without end")
        if words := [word for word in asked.options if not word.startswith("-")]:
            raise BadRequest(
                "--sbatch takes options with `=`, as in --sbatch='--gres=gpu:4 --exclusive', and so do the words "
                f"behind `--`; {words[0]} is none"
            )
        minutes = max(1, round(asked.time_limit_s / 60))
        limit = f"{minutes // 60}:{minutes % 60:02}:00"
        source = asked.source(name=NAME, time_limit=limit, options=asked.options, slots=asked.slots or 1)
        tested = submit(source, test_only=True)
        source = replace(source, slots=asked.slots or processors(tested))
        what = (
            f"{source.max_hosts} hosts at most, {source.slots} slots each, for {source.time_limit} at a time; given "
            f"back after {source.idle_s:g} s without work"
        )
        return Offer(source, what, f"Slurm would take it: {tested}\n")

    def submit(self, source: HostSource) -> str:
        """Request an allocation of one node."""
        return submit(source)

    def status(self, source: HostSource, numbers: Sequence[str]) -> dict[str, KnownAllocation]:
        """Return those of the allocations that wait or run."""
        del source
        return allocations(numbers)

    def cancel(self, source: str, number: str) -> None:
        """Give the allocation back."""
        del source
        cancel(number)
