"""Sources of hosts on demand: which a personal pool has, and what has become of what they asked for.

`on-demand.json` of the pool's state folder is what its user has set up (`jupyter elastic host add slurm:auto`),
`on-demand-status.json` what the user's agent, which asks for hosts, notes. The daemon shows a source as a host whose
slots are out until they are there, so that jobs are accepted which are larger than the pool is at the moment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from jupyter_elastic.platform import private_files
from jupyter_elastic.types.errors import BadRequest

AUTO = "slurm:auto"
"""The way of nodes that Slurm is asked for."""
NAME, STATUS = "on-demand.json", "on-demand-status.json"


class HostSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a user has set up: hosts that may be asked for when the queue needs them."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
    """Of the source, as the pool's screens show it."""
    kind: str = "slurm"
    """Who is asked: `slurm`, or `ray`."""
    reach: Annotated[str, Meta(max_length=300)] = ""
    """`ray://HOST:PORT`, of the cluster; empty for Slurm."""
    bundle: Annotated[dict[str, Annotated[float, Meta(gt=0)]], Meta(max_length=100)] = {}
    """What Ray is asked for, for each host: `{"GPU": 4}`."""
    max_hosts: Annotated[int, Meta(ge=1, le=1000)]
    """So many at once, those that are asked for among them."""
    slots: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Of each, as far as that is known before it is there."""
    time_limit: Annotated[str, Meta(max_length=40)] = ""
    """After which a host goes, as `sbatch --time` has it; empty: Ray knows none."""
    idle_s: Annotated[float, Meta(ge=1, le=1e7)] = 300.0
    """A host is given back that nobody has used, or wanted, for so long."""
    options: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    """More options for who is asked."""
    network: Annotated[str, Meta(max_length=64)] = ""
    python: Annotated[str, Meta(max_length=1000)] = ""
    """As in `HostAddress`."""
    begun: float = 0.0
    """When it was set up, in seconds since the epoch: failures before that are forgotten."""

    @property
    def way(self) -> str:
        """Where its hosts come from, as `host add` and `host list` have it."""
        return self.reach or AUTO


class Allocation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One host that was asked for."""

    number: str
    """As who was asked calls it."""
    submitted_at: float
    host: str = ""
    """Its name in the pool, once it is there."""
    idle_since: float | None = None
    """When it was last seen to be used or wanted; None: it is."""
    until: float | None = None
    """When it ends, in seconds since the epoch; None: nobody knows."""


class SourceStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has become of a source."""

    begun: float = 0.0
    """Of the set-up that this is about."""
    kind: str = "slurm"
    """Who was asked."""
    allocations: tuple[Allocation, ...] = ()
    failed_submits: int = 0
    failed_starts: int = 0
    """In a row, both."""
    why: str = ""
    """The last failure."""
    paused: bool = False
    """No more hosts are asked for, because of that."""


def read(state: Path) -> tuple[HostSource, ...]:
    """The sources of the pool with this state folder. BadRequest when the file can't be read."""
    path = state / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[HostSource, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise BadRequest(f"{path}: {problem}; remove the file, and `host add` what it held") from problem


def write(state: Path, sources: tuple[HostSource, ...]) -> None:
    """Replace them. OSError when that fails."""
    private_files.write_private(state / NAME, msgspec.json.format(msgspec.json.encode(sources)))


def statuses(state: Path) -> dict[str, SourceStatus]:
    """What is noted of each source, by its name."""
    return private_files.read_json(state / STATUS, dict[str, SourceStatus]) or {}


def note(state: Path, found: dict[str, SourceStatus]) -> None:
    """Note what has become of them. OSError when that can't be written."""
    private_files.write_json(state / STATUS, found, sync=True)  # an allocation that nobody knows is given back late


def said(source: HostSource, status: SourceStatus) -> str:
    """What people read of the slots that are not there."""
    if status.paused and status.begun == source.begun:
        target = f"{source.name} {source.reach}" if source.reach else AUTO
        return f"paused after failures: {status.why}; jupyter elastic host add {target} tries again, as before"
    waiting = ", ".join(one.number for one in status.allocations if not one.host)
    if waiting and source.kind == "ray":
        return f"asked for: placement group {waiting} waits for a node of the Ray cluster with room for it"
    if waiting:
        return f"asked for: allocation {waiting} waits in the queue of Slurm"
    failed = f"; the last try failed: {status.why}" if status.why else ""
    return f"not there: {source.kind.capitalize()} is asked when the queue needs it{failed}"
