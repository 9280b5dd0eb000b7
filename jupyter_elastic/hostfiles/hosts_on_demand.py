"""Reads and writes the sources of hosts on demand of a personal pool, and the status of their requests.

`on-demand.json` in the pool's state folder has the user's sources (`jupyter elastic host add slurm:auto`),
`on-demand-status.json` the notes of the user's agent, which requests hosts. The daemon shows a source as a host whose
slots are out until they exist, so that jobs are accepted which are larger than the pool is at the moment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from jupyter_elastic.platform import private_files
from jupyter_elastic.types.errors import BadRequest

NAME, STATUS = "on-demand.json", "on-demand-status.json"


class HostSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A user's source: hosts that may be requested when the queue needs them."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
    """Name of the source on the pool's screens."""
    kind: str = "slurm"
    """Scheme of the provider."""
    url: Annotated[str, Meta(max_length=300)] = field(name="reach", default="")
    """URL of the system that gives the hosts; empty where the scheme says enough, as Slurm's does."""
    bundle: Annotated[dict[str, Annotated[float, Meta(gt=0)]], Meta(max_length=100)] = {}
    """Resources requested from Ray for each host: `{"GPU": 4}`."""
    max_hosts: Annotated[int, Meta(ge=1, le=1000)]
    """Maximum number of hosts at once, requested ones included."""
    slots: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Expected slots of each host, until the real number is known."""
    time_limit: Annotated[str, Meta(max_length=40)] = ""
    """Maximum lifetime of a host, as for `sbatch --time`; empty: Ray has none."""
    idle_s: Annotated[float, Meta(ge=1, le=1e7)] = 300.0
    """Seconds without use or demand after which a host is given back."""
    options: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    """Further options for the provider."""
    network: Annotated[str, Meta(max_length=64)] = ""
    python: Annotated[str, Meta(max_length=1000)] = ""
    """As in `HostAddress`."""
    begun: float = 0.0
    """Time of the set-up, in seconds since the epoch: earlier failures are forgotten."""

    @property
    def way(self) -> str:
        """Origin of its hosts, as in `host add` and `host list`."""
        return self.url or f"{self.kind}:auto"


class SourceRequest(Struct, frozen=True, kw_only=True):
    """A source as a user asks for it by `host add`."""

    name: str
    url: str
    max_hosts: int | None
    slots: int | None
    """The user's number for each host; None: the provider's."""
    time_limit_s: float | None
    idle_s: float
    options: tuple[str, ...]
    """Words for the provider's system."""
    network: str
    python: str
    begun: float

    def source(self, **of_provider: object) -> HostSource:
        """Return the source, with the provider's values. BadRequest when a value is none that a source may have."""
        own = {name: getattr(self, name) for name in ("name", "max_hosts", "idle_s", "network", "python", "begun")}
        try:
            return msgspec.convert(own | of_provider, HostSource)
        except msgspec.ValidationError as problem:
            raise BadRequest(f"{self.name}: {problem}") from problem


class KnownAllocation(Struct, frozen=True, kw_only=True):
    """An allocation's state, as its provider reports it."""

    runs: bool
    node: str = ""
    url: str = ""
    """URL of the host, as in `HostAddress`."""
    until: float | None = None
    """End of the allocation in seconds since the epoch."""


class HostAllocation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for one host."""

    number: str
    """The provider's number."""
    submitted_at: float
    host: str = ""
    """Name of the host in the pool, once it is there."""
    idle_since: float | None = None
    """Time since which it is neither used nor wanted; None: it is."""
    until: float | None = None
    """End in seconds since the epoch; None: not known."""


class SourceStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of a source."""

    begun: float = 0.0
    """Time of the set-up that this status belongs to."""
    kind: str = "slurm"
    allocations: tuple[HostAllocation, ...] = ()
    failed_submits: int = 0
    failed_starts: int = 0
    """Consecutive failures of starts; likewise `failed_submits` of requests."""
    why: str = ""
    """The last failure."""
    paused: bool = False
    """True if no more hosts are requested after these failures."""


def read(state: Path) -> tuple[HostSource, ...]:
    """Read the sources of the pool with this state folder. BadRequest when the file can't be read."""
    path = state / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[HostSource, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise BadRequest(f"{path}: {problem}; remove the file, and `host add` what it held") from problem


def write(state: Path, sources: tuple[HostSource, ...]) -> None:
    """Replace the sources. OSError when that fails."""
    private_files.write_private(state / NAME, msgspec.json.format(msgspec.json.encode(sources)))


def statuses(state: Path) -> dict[str, SourceStatus]:
    """Read the status of each source, by name."""
    return private_files.read_json(state / STATUS, dict[str, SourceStatus]) or {}


def note(state: Path, found: dict[str, SourceStatus]) -> None:
    """Write the status of each source. OSError when that can't be written."""
    private_files.write_json(state / STATUS, found, sync=True)  # an allocation that nobody knows is given back late


def said(source: HostSource, status: SourceStatus, waits: str = "allocation {}") -> str:
    """Return the text for people on a source's missing slots; `waits` is the provider's, on requests that wait."""
    if status.paused and status.begun == source.begun:
        target = f"{source.name} {source.url}" if source.url else source.way
        return f"paused after failures: {status.why}; jupyter elastic host add {target} tries again, as before"
    if waiting := ", ".join(one.number for one in status.allocations if not one.host):
        return f"asked for: {waits.format(waiting)}"
    failed = f"; the last try failed: {status.why}" if status.why else ""
    return f"not there: {source.kind.capitalize()} is asked when the queue needs it{failed}"
