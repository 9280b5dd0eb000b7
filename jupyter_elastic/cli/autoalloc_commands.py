"""Implements hosts on demand: `host add slurm:auto …`, `host add NAME ray://HOST:PORT --max-hosts …`."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import structs

from jupyter_elastic.cli import ray_cluster
from jupyter_elastic.hostfiles import hosts_on_demand
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hostfiles.hosts_on_demand import AUTO, HostSource
from jupyter_elastic.hosts import host_url
from jupyter_elastic.hosts.providers import slurm
from jupyter_elastic.kernel.option_values import seconds_from
from jupyter_elastic.types.errors import BadRequest

NAME = "slurm-auto"
_NEEDS = "{}: add --time-limit 1h --max-hosts 4, so that nobody pays for hosts without end"

_WHERE = f"{AUTO}`, or for nodes of a Ray cluster that come on demand, `host add NAME ray://HOST:PORT"
_ONLY: dict[str, object] = {
    "partition": "", "time_limit": "", "max_hosts": None, "idle": "", "sbatch": "", "bundle": "", "dry_run": False,
}  # fmt: skip
_BUNDLE = """{}: add --max-hosts 4, and what Ray is asked for, for each: --bundle '{{"GPU": 4}}', or '{{"CPU": 8}}'"""


def change(given: argparse.Namespace, state: Path) -> str:
    """Set up or remove the Slurm source; return a text on the change. BadRequest has Slurm's own words."""
    sources = {source.name: source for source in hosts_on_demand.read(state)}
    if given.action == "remove":
        if sources.pop(NAME, None) is None:
            raise BadRequest(f"{AUTO} is not set up in this pool")
        hosts_on_demand.write(state, tuple(sources.values()))
        return f"{AUTO}: no more hosts are asked for, and those that are there are given back"
    refuse_options(given, {"bundle": ""}, "NAME ray://HOST:PORT")
    if given.url:
        raise BadRequest(f"{AUTO} finds its hosts by itself: leave {given.url} out")
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


def is_ray(given: argparse.Namespace, state: Path) -> bool:
    """Return whether the command is about on-demand nodes of a Ray cluster."""
    if given.action == "remove":
        return any(source.name == given.slots and source.url for source in hosts_on_demand.read(state))
    return (given.url or "").startswith("ray:") and (given.max_hosts is not None or bool(given.bundle))


def change_ray(given: argparse.Namespace, state: Path, hosts: Iterable[HostAddress]) -> str:
    """Set up or remove a Ray source; return a text on the change. BadRequest or EngineError if impossible."""
    sources = {source.name: source for source in hosts_on_demand.read(state)}
    name = given.slots
    if given.action == "remove":
        del sources[name]
        hosts_on_demand.write(state, tuple(sources.values()))
        return f"{name}: no more nodes are asked for, and Ray has back those that are there"
    others = [host for host in hosts if host.source != name]
    if taken := {name} & {host.name for host in others} or ray_cluster.of_cluster(name, others):
        raise BadRequest(f"{', '.join(sorted(taken))}: in the pool already, to stay; first: host remove {name}")
    source = _described_for_ray(given)
    ray_cluster.nodes(host_url.ray_node(source.url)[0])
    what = (
        f"{source.max_hosts} hosts at most, {source.slots} slots each; Ray has them back after {source.idle_s:g} s "
        "without work"
    )
    if given.dry_run:
        return f"{name} would be {what}; nothing was set up"
    sources[name] = source
    hosts_on_demand.write(state, tuple(sources.values()))
    return f"{name}: {what}"


def _described_for_ray(given: argparse.Namespace) -> HostSource:
    refuse_options(given, {"partition": "", "time_limit": "", "sbatch": ""}, AUTO)
    if given.slots == NAME or given.number is not None or given.label:
        raise BadRequest(f"--bundle says how many slots a host has: leave out --slots, --label and the name {NAME}")
    if given.max_hosts is None or not given.bundle:
        raise BadRequest(_BUNDLE.format(given.slots))
    host_url.check(HostAddress(name="node", url=given.url, network=given.network), clusters=True)
    if host_url.ray_node(given.url)[1]:
        raise BadRequest(f"{given.url} is one node; name the cluster, ray://HOST:PORT, for nodes that are to come")
    try:
        bundle = msgspec.json.decode(given.bundle, type=dict[str, float])
        told = {
            "name": given.slots, "kind": "ray", "reach": given.url, "bundle": bundle, "max_hosts": given.max_hosts,
            "slots": int(bundle.get("GPU", 0)) or int(bundle.get("CPU", 0)),
            "idle_s": _seconds("--idle", given.idle or "5m"),
            "network": given.network, "python": given.python, "begun": time.time(),
        }  # fmt: skip
        return msgspec.convert(told, HostSource)
    except msgspec.DecodeError as problem:
        raise BadRequest(f"{_BUNDLE.format(given.slots)}: {problem}") from problem


def refuse_options(given: argparse.Namespace, names: dict[str, object] = _ONLY, where: str = _WHERE) -> None:
    """Raise BadRequest for options that have a meaning only with `host add {where}`."""
    for name, without in names.items():
        if getattr(given, name) != without:
            raise BadRequest(f"--{name.replace('_', '-')} is for `host add {where}`; leave it out")


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
    """Format a time as for `sbatch --time`; whole minutes, at least one."""
    minutes = max(1, round(limit_s / 60))
    return f"{minutes // 60}:{minutes % 60:02}:00"
