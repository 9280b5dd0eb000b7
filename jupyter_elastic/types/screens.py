"""What screens and commands see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from jupyter_elastic.types.vocabulary import GpuProcess, Host, JobId, JobSpec, Phase, Progress, Record, SlotId


class JobInfo(Record, frozen=True, kw_only=True):
    """A job as `jobs`, the handle and the panel show it."""

    job: JobId
    owner: str
    spec: JobSpec
    phase: Phase
    attempt: int = 0
    generation: int = 0
    slots: tuple[SlotId, ...] = ()
    draining: tuple[SlotId, ...] = ()
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    reason: str = ""
    progress: Progress | None = None
    preemptions: int = 0
    restarts: int = 0
    elastic: bool | None = None
    """Whether its cell has come to an elastic loop; until then its size stays."""
    stays: str = ""
    """Why it doesn't grow: a worker could not join; empty where that is not so."""
    held: int = 0
    """Slots that its session keeps after its end, until `held_until` unless somebody waits."""
    held_until: float | None = None
    pinned: tuple[SlotId, ...] = ()
    """Slots that its session keeps after its end because its memory can't leave their devices, until `pinned_until`
    at the latest."""
    pinned_why: str = ""
    pinned_until: float | None = None
    uid: int | None = None
    """The owner's UNIX id, where that is another user than who asks; -1: not known. The owner's files have it."""

    @property
    def private(self) -> bool:
        """Whether it is somebody else's: what is their owner's alone is left out."""
        return not self.spec.folder

    @property
    def note(self) -> str:
        """The reason, and how it begins again where it was taken its slots: what a list of jobs says beside it."""
        again = self.phase == "queued" and self.attempt and self.reason and not self.private
        how = begins_again(self.elastic, self.attempt, preempted=self.preemptions > 0) if again else ""
        return f"{self.reason}; {how}" if how else self.reason


BOUNDARY = "training.boundary()"
"""Where the size of a training with parameter servers can change."""


def size_stays(spec: JobSpec, workers: int, elastic: bool | None) -> str:
    """Why a running job that asked for a range keeps its size; empty when it doesn't, or asked for one size."""
    if elastic or (spec.min_slots, spec.min_servers) == (spec.max_slots, spec.max_servers):
        return ""
    if elastic is None:
        return f"size stays {workers} until the cell comes to {BOUNDARY if spec.max_servers else 'an elastic loop'}"
    if spec.max_servers:
        return f"size stays {workers}: this cell calls no {BOUNDARY} where it has saved, and is not --resumable"
    return f"size stays {workers}: this cell has no elastic loop"


def begins_again(elastic: bool | None, attempts: int, *, preempted: bool, step: int | None = None) -> str:
    """How a job begins that was taken its slots.

    `elastic`: whether its cell had come to an elastic loop, the only one to commit, in the last of so many attempts. It
    commits when it is preempted too, then at `step`.
    """
    if elastic:
        return "goes on from its last commit" if step is None or not preempted else f"goes on from step {step:,}"
    if elastic is None and attempts > 1:  # an earlier one may have left a commit
        return "begins again"
    lost = "begins anew: this cell keeps no commits" if elastic is False else "begins anew: it had kept no commit"
    return lost + (" (--no-preempt rules a pause out)" if preempted else "")


class SlotInfo(Record, frozen=True, kw_only=True):
    """A slot as the map shows it."""

    slot: SlotId
    state: Literal["free", "leased", "draining", "out"]
    job: JobId | None = None
    owner: str = ""
    device: str = ""
    reason: str = ""
    """Why it is out, or who else uses it."""
    attempt: int | None = None
    uid: int | None = None
    """The UNIX id of the owner; None: the owner has come by a key."""
    foreign: tuple[GpuProcess, ...] = ()
    """Processes on it that are not of the user who has leased it."""
    for_servers: bool = False
    """As in `Slot`."""
    drained: str = ""
    """By whom it is kept from new work, and why; empty when it isn't."""
    pinned: str = ""
    """Which session keeps it after a cell, and why; `job` is that cell. Empty when none does."""


class HostInfo(Record, frozen=True, kw_only=True):
    """What is known of another machine than the daemon's, beside its slots."""

    name: str
    reach: str
    until: float | None = None
    """As in `Host`."""
    unreachable: str = ""
    """Why the user who asks can't get there now; empty: nothing is known against it."""


def other_machines(hosts: Iterable[Host], user: str) -> tuple[HostInfo, ...]:
    """Those of the hosts that are not the daemon's own machine, as they are for a user."""
    return tuple(
        HostInfo(name=host.name, reach=host.reach, until=host.until, unreachable=host.unreachable.get(user, ""))
        for host in hosts
        if host.reach
    )


class PolicyInfo(Record, frozen=True, kw_only=True):
    """A policy as the picker shows it."""

    name: str
    summary: str
    active: bool = False
    options: dict[str, Any] = {}
    """Present values for the active policy, defaults for the others."""
    schema: dict[str, Any] = {}
    """JSON schema of the options."""
