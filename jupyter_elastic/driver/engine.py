"""The interface of an engine, which starts, regroups and ends the workers of an attempt, one a slot.

An engine lives in the driver process of one attempt, in its asyncio loop, and reports what happens. It decides nothing
about slots. The driver knows engines by this module alone.
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
    """FIFO of an attempt with a lease: a process that reads it is killed with the driver (`platform.enforced_end`)."""
    warm: bool = True
    """True if workers may be forked from a warm parent."""
    hosts: tuple[Target, ...] = ()
    """The other hosts; every slot of another name is on this host."""
    find_hosts: Callable[[], tuple[Target, ...]] = tuple
    """Returns `hosts` as they are now: hosts may have been added since."""


class Finding(Struct, frozen=True):
    """The finding of one check of this installation; `advice` says how to mend a warning or an error."""

    check: str
    status: Literal["ok", "warning", "error"]
    found: str
    advice: str = ""


class Engine(Protocol):
    """One attempt's workers. Every method returns soon; the outcome is reported.

    Reports, in this order for a normal life: `RunningReported(generation, slots, elastic)` each time a generation has
    settled, and again when the cell has come to an elastic loop (a job that hasn't is not asked to rescale);
    `ReleaseReported(slots)` as soon as a slot's process is gone; `ProgressReported`; where workers die and the attempt
    goes on, `DeathReported` and `ReplacementReported`; at the very end, when no process of the attempt lives any more,
    exactly one `ExitReported`.

    An engine writes `name`, `__init__`, `launch`, `rescale`, `stop` and `pids`; for the rest there are defaults.

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
        """Return how well this engine fits the cell, and why; None: the engine is taken only when it is named."""
        del cell
        return None

    @classmethod
    def examine(cls) -> Finding | None:
        """Return what `jupyter elastic doctor` says of this engine; None: nothing."""
        return None

    def __init__(self, context: AttemptContext, report: SendReport) -> None: ...

    async def launch(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Start one worker on each slot. Called once, first.

        Args:
            generation: Number of this set of slots, from 1 on; it comes back in `RunningReported`.
            slots: The slots, as `host:index`. An engine with `takes_servers` is also given `servers`: so many of the
                last slots are for servers, the others for workers.
            devices: A slot's GPU (UUID, for `CUDA_VISIBLE_DEVICES`); empty on CPU hosts.
        """
        ...

    async def rescale(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Go on with exactly these slots. A later command replaces an unfinished one; after the end it does nothing.

        Args:
            generation: As for `launch`, rising.
            slots: The slots to hold from now on. Slots that are given up are released as soon as their processes are
                gone.
            devices: As for `launch`; of the new slots at least.
        """
        ...

    async def stop(self, how: str) -> None:
        """End the attempt; may be called again at any time.

        Args:
            how: `preempt`: commit to disk first, within a grace time; `cancel`: at once.
        """
        ...

    def pids(self) -> list[tuple[int, float]]:
        """Return every process of the attempt, so that a successor can end those of a dead driver.

        Returns:
            (pid, start time in seconds since the epoch, as psutil's `create_time`) of each; empty after the end.
        """
        ...

    def waits(self) -> str:
        """Return a sentence that says which ranks wait for which; empty while none does."""
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
