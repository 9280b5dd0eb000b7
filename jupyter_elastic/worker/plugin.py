"""The worker's half of an engine: a plug-in that a worker loads before it runs a cell, named by the driver's half.

An engine whose workers don't know each other needs none.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn, Protocol

from jupyter_elastic.platform import entry_points
from jupyter_elastic.training.group import Groups
from jupyter_elastic.types.capabilities import capabilities_of
from jupyter_elastic.types.errors import EngineError
from jupyter_elastic.worker.channel import DriverChannel, WorkerSession


@dataclass(frozen=True)
class WorkerFacilities:
    """The objects that a worker lends its plug-in."""

    channel: DriverChannel
    session: WorkerSession
    name: str
    """The worker's name within its attempt."""
    follow: Callable[..., None]
    """Called before a joined group forms, with its rank and size, and this host's `HostRank` if there are several
    hosts: moves output, environment and names to the new rank."""
    expect: Callable[[int, int], None]
    """Called for a group that a worker will join: does all that `follow` does but for the output."""
    exit_removed: Callable[[], NoReturn]
    """Ends this worker, which is not in the next group."""


class WorkerPlugin(Protocol):
    """The worker's half of an engine."""

    groups: Groups | None
    """The engine's groups for `training`; None: its workers form no groups."""
    preimports: ClassVar[Mapping[str, Sequence[str]]]
    """Modules that workers need beside a framework (`torch`, `tensorflow`), imported once, before they are forked."""

    def __init__(self, host: WorkerFacilities) -> None: ...

    def install(self) -> None:
        """Make this process ready, before the cell runs; frameworks are loaded already or will be by the cell."""
        ...


class StayingPlugin(WorkerPlugin, Protocol):
    """A plug-in of an engine whose workers can stay for a session (`Capabilities.sessions`)."""

    def stay(self) -> None:
        """Prepare for a worker that will stay: called once, after `install`."""
        ...

    def end_cell(self, *, failed: bool, close: bool) -> str:
        """End a cell: free the members that wait for this worker, and leave the groups of the cell's job.

        `close`: also leave groups that a cell has formed itself, for they hold memory of a device.

        The value that rank 0 returns is passed to every rank's `rejoin` in the next cell; empty for nothing.
        """
        ...

    def next_cell(self, host: WorkerFacilities) -> None:
        """Prepare for another cell, of another job."""
        ...

    def rejoin(self, group: str) -> None:
        """Form the group again that the next cell expects to be in; called on every rank, as a part of that cell."""
        ...


def installed() -> list[type[WorkerPlugin]]:
    """Return the worker halves of all engines that can be loaded here; the others report why when they are used."""
    found = []
    for entries in entry_points.installed(entry_points.ENGINES).values():
        with contextlib.suppress(EngineError):
            engine = entry_points.load(entries)
            if reference := capabilities_of(engine).worker:
                found.append(load(engine.name, reference))
    return found


def load(engine: str, reference: str) -> type[WorkerPlugin]:
    """Return the plug-in at `reference` (`module:class`); EngineError with advice when it can't be imported."""
    module, _, name = reference.partition(":")
    try:
        found: type[WorkerPlugin] = getattr(importlib.import_module(module), name)
    except Exception as problem:
        raise EngineError(
            f"the worker's half of the engine {engine!r}, {reference}, can't be imported: {type(problem).__name__}: "
            f"{problem}. Install the engine's package into this kernel's environment, or choose another with --engine"
        ) from problem
    return found
