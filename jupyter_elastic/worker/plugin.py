"""The worker's half of an engine: what a worker loads before it runs a cell, by the name that the driver's half gives.

An engine whose workers don't know each other needs none.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn, Protocol

from jupyter_elastic.platform import plugins
from jupyter_elastic.training.group import Groups
from jupyter_elastic.types.errors import EngineError
from jupyter_elastic.worker.channel import DriverChannel, WorkerSession


@dataclass(frozen=True)
class Host:
    """What a worker lends its plug-in."""

    channel: DriverChannel
    session: WorkerSession
    name: str
    """The worker's, within its attempt."""
    follow: Callable[..., None]
    """Called with rank and size of each group that is joined, and this host's `HostPlace` (left out: the only one),
    before it forms: output, environment and names follow."""
    expect: Callable[[int, int], None]
    """The same for a group that a newcomer will join: all but the output."""
    exit_removed: Callable[[], NoReturn]
    """End this worker, which is not in the next group."""


class WorkerPlugin(Protocol):
    """The worker's half of an engine."""

    groups: Groups | None
    """What the engine offers to `training`; None: its workers form no groups."""
    preimports: ClassVar[Mapping[str, Sequence[str]]]
    """Modules that workers need beside a framework (`torch`, `tensorflow`), imported once, before they are forked."""

    def __init__(self, host: Host) -> None: ...

    def install(self) -> None:
        """Make this process ready, before the cell runs; frameworks are loaded already or will be by the cell."""
        ...


class StayingPlugin(WorkerPlugin, Protocol):
    """That of an engine whose workers can stay for a session (`WorkersEngine.sessions`)."""

    def stay(self) -> None:
        """The worker will stay: called once, after `install`."""
        ...

    def end_cell(self, *, failed: bool, close: bool) -> str:
        """A cell is over: free whoever waits for this worker, and leave the groups of the cell's job.

        `close`: those too that a cell has formed itself, for they hold memory of a device.

        What it returns on rank 0 is what every rank's `rejoin` gets in the next cell; empty for nothing.
        """
        ...

    def next_cell(self, host: Host) -> None:
        """Another cell is to run, of another job."""
        ...

    def rejoin(self, group: str) -> None:
        """Form the group again that the next cell expects to be in; called on every rank, as a part of that cell."""
        ...


def installed() -> list[type[WorkerPlugin]]:
    """The worker halves of all engines that can be loaded here; what is wrong with another is said where it is used."""
    found = []
    for entries in plugins.installed(plugins.ENGINES).values():
        with contextlib.suppress(EngineError):
            engine = plugins.load(entries)
            if reference := getattr(engine, "worker", ""):
                found.append(load(engine.name, reference))
    return found


def load(engine: str, reference: str) -> type[WorkerPlugin]:
    """The plug-in at `reference` (`module:class`); EngineError with what to do when it can't be imported."""
    module, _, name = reference.partition(":")
    try:
        found: type[WorkerPlugin] = getattr(importlib.import_module(module), name)
    except Exception as problem:
        raise EngineError(
            f"the worker's half of the engine {engine!r}, {reference}, can't be imported: {type(problem).__name__}: "
            f"{problem}. Install the engine's package into this kernel's environment, or choose another with --engine"
        ) from problem
    return found
