"""Implements hosts on demand: `host add slurm --max 4 --time-limit 1h`, or by another provider that can be asked."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterable
from pathlib import Path

from jupyter_elastic.hostfiles import host_providers, hosts_on_demand
from jupyter_elastic.hostfiles.host_providers import Allocates
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hostfiles.hosts_on_demand import SourceRequest
from jupyter_elastic.kernel.option_values import seconds_from
from jupyter_elastic.types.errors import BadRequest

_ONLY: dict[str, object] = {
    "partition": "", "time_limit": "", "max_hosts": None, "idle": "", "sbatch": "", "bundle": "", "dry_run": False,
    "more": [],
}  # fmt: skip
"""Arguments that have a meaning for hosts on demand alone, and their values when they are left out."""


def is_on_demand(given: argparse.Namespace, url: str) -> bool:
    """Return True if `host add` asks for hosts on demand of a provider that can be asked for hosts."""
    scheme, _, text = url.partition(":")
    asked = text == "auto" or any(getattr(given, name) != without for name, without in _ONLY.items())
    return asked and isinstance(host_providers.provider(scheme), Allocates)


def refuse_options(given: argparse.Namespace) -> None:
    """Raise BadRequest for arguments that have a meaning only for hosts on demand."""
    for name, without in _ONLY.items():
        if getattr(given, name) != without:
            what = f"--{name.replace('_', '-')}" if name != "more" else f"-- {shlex.join(given.more)}"
            raise BadRequest(f"{what} is for hosts on demand, as by `host add slurm`; leave it out")


def set_up(given: argparse.Namespace, name: str, url: str, state: Path, hosts: Iterable[HostAddress]) -> str:
    """Set up a source; return a text on it. BadRequest, or EngineError, has the words of the provider's system."""
    scheme = url.partition(":")[0]
    provider = host_providers.provider(scheme)
    assert isinstance(provider, Allocates)
    name = name or f"{scheme}-auto"
    asked = SourceRequest(
        name=name,
        url=url,
        max_hosts=given.max_hosts,
        slots=given.number,
        time_limit_s=_seconds("--time-limit", given.time_limit) if given.time_limit else None,
        idle_s=_seconds("--idle", given.idle or "5m"),
        options=_options(given),
        network=given.network,
        python=given.python,
        begun=time.time(),
    )
    if given.label:
        raise BadRequest("hosts on demand have the label `gpu` alone: leave out --label")
    host_providers.check_network(HostAddress(name=name, url=url, network=given.network))
    others = [host for host in hosts if host.source != name]
    if taken := [host.name for host in others if host.name == name or host_providers.belongs(host, name)]:
        raise BadRequest(f"{', '.join(sorted(taken))}: in the pool already, to stay; first: host remove {name}")
    sources = {source.name: source for source in hosts_on_demand.read(state)}
    if (before := sources.get(name)) is not None and before.kind != scheme:
        raise BadRequest(f"{name} is a source of {before.way} already; give this one another name")
    offer = provider.offer(asked)
    title = offer.source.name if offer.source.url else offer.source.way
    if given.dry_run:
        return f"{offer.tried}{title} would be {offer.what}; nothing was set up"
    hosts_on_demand.write(state, tuple((sources | {offer.source.name: offer.source}).values()))
    return f"{title}: {offer.what}"


def remove(name: str, url: str, state: Path) -> str:
    """Remove a source; return a text on it, empty if there is none of this name or URL."""
    sources = {source.name: source for source in hosts_on_demand.read(state)}
    scheme, _, text = url.partition(":")
    found = sources.pop(name or ("" if text else f"{scheme}-auto"), None)
    if found is None and text == "auto":
        raise BadRequest(f"{url} is not set up in this pool")
    if found is None:
        return ""
    hosts_on_demand.write(state, tuple(sources.values()))
    title = found.name if found.url else found.way
    return f"{title}: no more hosts are asked for, and those that are there are given back"


def _options(given: argparse.Namespace) -> tuple[str, ...]:
    """Return the words for the provider's system: those of the options that name them, and those behind `--`."""
    try:
        words = shlex.split(given.sbatch)
    except ValueError as problem:
        raise BadRequest(f"--sbatch {given.sbatch}: {problem}") from problem
    named = [f"--{name}={getattr(given, name)}" for name in ("partition", "bundle") if getattr(given, name)]
    return (*named, *words, *given.more)


def _seconds(option: str, text: str) -> float:
    try:
        return seconds_from(text)
    except argparse.ArgumentTypeError as problem:
        raise BadRequest(f"{option} {problem}") from problem
