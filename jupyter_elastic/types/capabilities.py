"""Declares what an engine can do, so that commands, the driver and the workers read it from one place. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Capabilities(Struct, frozen=True, kw_only=True):
    """Lists what an engine can do; the defaults are those of an engine that promises nothing beyond running cells."""

    takes_cells: bool = True
    """True if the engine runs cells; False if it is for other jobs."""
    takes_servers: bool = False
    """True if the engine has parameter servers beside its workers; their number is `servers` of `launch`, `rescale`."""
    resumable: bool = False
    """True if the engine can end all workers at a change and start them anew (`--resumable`)."""
    starts_anew: bool = False
    """True if every change and every death does so, with or without `--resumable`."""
    sessions: bool = False
    """True if the workers can stay for a session; the worker half is a `worker.plugin.StayingPlugin` then."""
    forms_groups: bool = False
    """True if the workers form a process group with each other."""
    spans_hosts: bool = True
    """True if the workers find each other on different hosts; else all are on the driver's host."""
    torchrun: bool = True
    """True if the workers are started together, and may form a group by themselves as torchrun's do."""
    library: tuple[str, ...] = ()
    """The library whose use in a cell means that the cell forms groups by itself, and the library's displayed name."""
    frameworks: tuple[str, ...] = ()
    """Frameworks that the workers import for any cell."""
    worker: str = ""
    """The worker's half, a `worker.plugin.WorkerPlugin`, as `module:class`; empty: there is none."""
    launched: str = ""
    """Function, as `module:function`, that returns the groups of a process started by the library's own launcher."""


def capabilities_of(engine: Any) -> Capabilities:
    """Return an engine's capabilities; until 0.2 an engine without any may have attributes of their names instead."""
    found: Capabilities | None = getattr(engine, "capabilities", None)
    if found is not None:
        return found
    old = {name: getattr(engine, name) for name in Capabilities.__struct_fields__ if hasattr(engine, name)}
    return Capabilities(**old)
