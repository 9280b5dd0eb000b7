"""Defines the interface of an engine, which starts, regroups and ends the workers of an attempt, one worker per slot.

An engine lives in the driver process of one attempt, in its asyncio loop, and reports what happens. Which slots
the attempt holds is not its decision. The driver knows engines by this module alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal, Protocol, TypeAlias

from msgspec import Struct

from jupyter_elastic.hostfiles.host_providers import Target
from jupyter_elastic.hosts.remote_usage import RemoteUsage
from jupyter_elastic.jobfiles.cell_hints import CellText, Claim
from jupyter_elastic.types import JobId, Report, SlotId
from jupyter_elastic.types.capabilities import Capabilities, capabilities_of

SendReport: TypeAlias = Callable[[Report], None]
"""Takes an engine's reports. Never blocks, never raises."""


class AttemptContext(Struct, frozen=True, kw_only=True):
    """The facts of an attempt that an engine needs."""

    job: JobId
    attempt: int
    owner: str
    folder: Path
    """The job's folder: `payload.msgpack`, `rank.N/`, `results/`, `commit/`."""
    python: str
    """Interpreter of the workers."""
    runtime: Path
    """A folder with a short path (UNIX sockets) for this attempt alone, 0700."""
    min_slots: int = 1
    shared: bool = False
    """True if the pool's slots are leased to several people."""
    max_workers: int = 0
    """Maximum number of workers of the job; 0 if unknown."""
    fifo: str = ""
    """Path of a FIFO that the driver holds open for writing, if the attempt has a lease; else empty. When the driver is
    gone, Linux kills each process that has the FIFO open for reading (`platform.enforced_end`)."""
    warm: bool = True
    """True if workers may be forked from a warm parent."""
    hosts: tuple[Target, ...] = ()
    """The other hosts. A slot whose host is none of these is on the driver's own host."""
    find_hosts: Callable[[], tuple[Target, ...]] = tuple
    """Returns the other hosts at the time of the call; some may have been added since `hosts` was set."""


class Finding(Struct, frozen=True):
    """The finding of one check of this installation; `advice` says how to mend a warning or an error."""

    check: str
    status: Literal["ok", "warning", "error"]
    found: str
    advice: str = ""


class Engine(Protocol):
    """One attempt's workers. Every method returns soon; what comes of it is reported.

    An engine reports, in this order if nothing goes wrong: `RunningReported(generation, slots, elastic)` each time a
    generation has settled (its members train on exactly these slots), and again when the cell has come to an elastic
    loop, for only then may the job be rescaled; `ReleaseReported(slots)` as soon as a slot's process is gone;
    `ProgressReported`; if workers die and the attempt goes on, `DeathReported` and `ReplacementReported`; at the very
    end, when no process of the attempt lives any more, exactly one `ExitReported`.

    A class of an engine defines `name`, `__init__`, `launch`, `rescale`, `stop` and `pids`; the other methods have
    defaults.

    Args:
        context: The facts of the attempt.
        report: Takes each report, from any thread.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities()

    @classmethod
    def missing(cls) -> str:
        """Return why this engine can't run with this interpreter, and how to mend that; empty when it can."""
        return ""

    @classmethod
    def claim(cls, cell: CellText) -> Claim | None:
        """Return how well this engine fits the cell, and why; None if only a user's request by name selects it."""
        del cell
        return None

    @classmethod
    def examine(cls) -> Finding | None:
        """Return what `jupyter elastic doctor` prints about this engine; None if there is nothing to print."""
        return None

    def __init__(self, context: AttemptContext, report: SendReport) -> None: ...

    async def launch(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Start one worker on each slot. The driver calls this once, before any other method of the instance.

        Args:
            generation: Number of this set of slots, from 1 on; `RunningReported` repeats it.
            slots: The slots, as `host:index`. An engine with `takes_servers` also gets the argument `servers`: the
                number of slots, at the end of `slots`, that are for parameter servers. The others are for workers.
            devices: The GPU of each slot, as its UUID for `CUDA_VISIBLE_DEVICES`; empty on CPU hosts.
        """
        ...

    async def rescale(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Go on with exactly these slots. A later call replaces an unfinished one; a call after the end does nothing.

        Args:
            generation: As for `launch`; higher than in all calls before.
            slots: The slots to hold from now on. Slots that are given up are released as soon as their processes are
                gone.
            devices: As for `launch`; contains at least the new slots.
        """
        ...

    async def stop(self, how: str) -> None:
        """End the attempt; may be called again at any time.

        Args:
            how: `preempt`: commit to disk first, within a grace time; `cancel`: at once.
        """
        ...

    def pids(self) -> list[tuple[int, float]]:
        """Return every process of the attempt, so that the agent can end them if the driver dies.

        Returns:
            (pid, start time in seconds since the epoch, as psutil's `create_time`) of each; empty after the end.
        """
        ...

    def waits(self) -> str:
        """Return a sentence that says which ranks wait for which others; empty while no rank waits."""
        return ""

    def kept(self) -> frozenset[tuple[int, float]]:
        """Return the processes that stay when the attempt is over, such as a session's workers."""
        return frozenset()

    def remote_usage(self) -> RemoteUsage:
        """Return the resource use of the workers on other hosts."""
        return RemoteUsage()


def completed(engine: type) -> type[Engine]:
    """Return an engine, with the defaults of `Engine` if its class does not derive from it."""
    if Engine in engine.__mro__:
        return engine
    return type(engine.__name__, (engine, Engine), {"capabilities": capabilities_of(engine)})
