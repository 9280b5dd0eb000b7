"""Reads and writes `hosts.json` of a pool's state folder: the other hosts of a personal pool, and their URLs.

The daemon takes names and slots from the file, the user's drivers the URLs: nobody else decides what is started.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from jupyter_elastic.platform import paths, private_files
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.types.errors import BadRequest

NAME = "hosts.json"


class HostAddress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A host, as its user describes it."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")]
    url: Annotated[str, Meta(max_length=300)] = field(name="reach")
    """URL of a provider's (`host_providers`): `ssh://[user@]host[:port]`, or `exec:`, a process on this machine."""
    slots: Annotated[int, Meta(ge=1, le=10_000)] = 1
    devices: Annotated[tuple[str, ...], Meta(max_length=10_000)] = ()
    """UUIDs of the GPUs that are its slots; empty: the slots are CPU cores."""
    network: Annotated[str, Meta(max_length=64)] = ""
    """Network of the group's data, such as `10.1.0.0/16`; empty: the one by which the host was connected."""
    python: Annotated[str, Meta(max_length=1000)] = ""
    """Path of the host's interpreter; empty: the same path as on this machine."""
    labels: Annotated[dict[Annotated[str, Meta(min_length=1, max_length=200)], str], Meta(max_length=100)] = {}
    """Labels for cells with `--on`; `gpu` is the name of its GPUs."""
    source: Annotated[str, Meta(max_length=100)] = ""
    """Source on demand (`hosts_on_demand`) that added and will remove the host; empty: its user has added it."""
    until: float | None = None
    """End of the host's allocation, in seconds since the epoch; None: not known."""


def host_name() -> str:
    """Return this machine's name as in names of slots; a colon would cut a slot's name in two."""
    return re.sub(r"[:\s]", "-", socket.gethostname()) or "localhost"


def read(state: Path) -> tuple[HostAddress, ...]:
    """Read the hosts of the pool with this state folder. BadRequest when the file can't be read."""
    return read_file(state / NAME)


def read_file(path: Path) -> tuple[HostAddress, ...]:
    """Read the hosts in a file; none if the file is missing. BadRequest when it can't be read."""
    try:
        hosts = msgspec.json.decode(path.read_bytes(), type=tuple[HostAddress, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as problem:
        example = '[{"name": "lab2", "reach": "ssh://lab2", "slots": 4}]'
        raise BadRequest(f"{path}: {problem}; expected a list of hosts such as {example}") from problem
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise BadRequest(f"{path}: a host is named twice: {', '.join(sorted(names))}")
    return hosts


def change(state: Path, *, drop: Iterable[str] = (), put: Iterable[HostAddress] = ()) -> None:
    """Remove hosts by name, and add or replace others. OSError when that can't be written."""
    with _changing(state) as hosts:
        for name in drop:
            hosts.pop(name, None)
        hosts |= {host.name: host for host in put}


def put_end(state: Path, name: str, until: float | None) -> None:
    """Set a host's end, unless the host has been removed. OSError when that can't be written."""
    with _changing(state) as hosts:
        if name in hosts:
            hosts[name] = replace(hosts[name], until=until)


@contextlib.contextmanager
def _changing(state: Path) -> Iterator[dict[str, HostAddress]]:
    """Yield the hosts by name for changes. A lock keeps commands and the agent from undoing each other's changes."""
    with Lock(paths.runtime_dir_of(state) / "hosts.lock").held():
        hosts = {host.name: host for host in read(state)}
        yield hosts
        private_files.write_private(state / NAME, msgspec.json.format(msgspec.json.encode(tuple(hosts.values()))))
