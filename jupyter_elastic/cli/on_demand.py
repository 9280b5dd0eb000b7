"""`jupyter elastic host add slurm:auto` and `host remove slurm:auto`: hosts that come when the queue needs them."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path

import msgspec
from msgspec import structs

from jupyter_elastic.agent import slurm
from jupyter_elastic.kernel.options import seconds_from
from jupyter_elastic.platform import hosts_on_demand
from jupyter_elastic.platform.hosts_on_demand import HostSource
from jupyter_elastic.types.errors import BadRequest

AUTO = "slurm:auto"
NAME = "slurm-auto"
_NEEDS = "{}: add --time-limit 1h --max-hosts 4, so that nobody pays for hosts without end"


def change(given: argparse.Namespace, state: Path) -> str:
    """Set the source up, or take it away; what was done. BadRequest says what is missing, in Slurm's own words."""
    sources = {source.name: source for source in hosts_on_demand.read(state)}
    if given.action == "remove":
        if sources.pop(NAME, None) is None:
            raise BadRequest(f"{AUTO} is not set up in this pool")
        hosts_on_demand.write(state, tuple(sources.values()))
        return f"{AUTO}: no more hosts are asked for, and those that are there are given back"
    if given.reach:
        raise BadRequest(f"{AUTO} finds its hosts by itself: leave {given.reach} out")
    source = _described(given)
    tested = slurm.submit(source, test_only=True)
    if given.number is None:
        source = structs.replace(source, slots=slurm.processors(tested))
    what = (
        f"{source.max_hosts} hosts at most, {source.slots} slots each, for {source.time_limit} at a time; given back "
        f"after {source.idle_s:g} s without work"
    )
    if given.dry_run:
        return f"Slurm would take it: {tested}\n{AUTO} would be {what}; nothing was set up"
    sources[NAME] = source
    hosts_on_demand.write(state, tuple(sources.values()))
    return f"{AUTO}: {what}"


def refuse_options(given: argparse.Namespace) -> None:
    """BadRequest where options are given that only mean something with `slurm:auto`."""
    names = {"partition": "", "time_limit": "", "max_hosts": None, "idle": "", "sbatch": "", "dry_run": False}
    for name, without in names.items():
        if getattr(given, name) != without:
            raise BadRequest(f"--{name.replace('_', '-')} is for `host add {AUTO}`; leave it out")


def _described(given: argparse.Namespace) -> HostSource:
    if not given.time_limit or given.max_hosts is None:
        raise BadRequest(_NEEDS.format(AUTO))
    limit_s, idle_s = _seconds("--time-limit", given.time_limit), _seconds("--idle", given.idle or "5m")
    try:
        more = shlex.split(given.sbatch)
    except ValueError as problem:
        raise BadRequest(f"--sbatch {given.sbatch}: {problem}") from problem
    if words := [word for word in more if not word.startswith("-")]:
        raise BadRequest(
            f"--sbatch takes options with `=`, as in --sbatch='--gres=gpu:4 --exclusive'; {words[0]} is none"
        )
    told = {
        "name": NAME, "max_hosts": given.max_hosts, "time_limit": _slurms(limit_s), "idle_s": idle_s,
        "options": [*([f"--partition={given.partition}"] if given.partition else []), *more],
        "network": given.network, "python": given.python, "begun": time.time(),
    }  # fmt: skip
    if given.number is not None:
        told["slots"] = given.number
    try:
        return msgspec.convert(told, HostSource)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"{AUTO}: {problem}") from problem


def _seconds(option: str, text: str) -> float:
    try:
        return seconds_from(text)
    except argparse.ArgumentTypeError as problem:
        raise BadRequest(f"{option} {problem}") from problem


def _slurms(limit_s: float) -> str:
    """As `sbatch --time` has it; whole minutes, at least one."""
    minutes = max(1, round(limit_s / 60))
    return f"{minutes // 60}:{minutes % 60:02}:00"
