"""Records that screens and commands show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import field

from jupyter_elastic.types.vocabulary import (
    GpuProcess,
    Host,
    JobId,
    JobSpec,
    Phase,
    Progress,
    Record,
    Retention,
    SlotId,
)


class JobInfo(Record, frozen=True, kw_only=True):
    """A job as `job list`, the handle and the panel show it."""

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
    """True once the cell has come to an elastic loop; until then the job's size stays."""
    stays: str = ""
    """Reason why the job doesn't grow, as a worker could not join; empty if it may grow."""
    held: int = 0
    """Slots that the session keeps after the job's end, until `held_until` unless another job waits."""
    held_until: float | None = None
    pinned: tuple[SlotId, ...] = ()
    """Slots that the session retains after the job's end because its memory can't leave their devices, until
    `pinned_until` at the latest."""
    pinned_why: str = ""
    pinned_until: float | None = None
    uid: int | None = None
    """UNIX id of the owner of the job and its files if the requester is another user; -1: unknown."""

    @property
    def retention(self) -> Retention | None:
        """Slots that the job's session keeps after the job's end; None: nothing."""
        until, pinned_until = self.held_until or 0.0, self.pinned_until or 0.0
        return Retention.of(self.held, until, self.pinned, self.pinned_why, pinned_until)

    @property
    def private(self) -> bool:
        """True if the job is another user's, so that fields for its owner alone are left out."""
        return not self.spec.folder

    @property
    def note(self) -> str:
        """Reason, and how the job begins again after it lost its slots; shown beside it in a list of jobs."""
        again = self.phase == "queued" and self.attempt and self.reason and not self.private
        how = begins_again(self.elastic, self.attempt, preempted=self.preemptions > 0) if again else ""
        return f"{self.reason}; {how}" if how else self.reason


BOUNDARY = "training.boundary()"
"""Call at which the size of a training with parameter servers can change."""


def size_stays(spec: JobSpec, workers: int, elastic: bool | None) -> str:
    """Return the reason why a running job that asked for a range keeps its size; empty if there is none."""
    if elastic or (spec.min_slots, spec.min_servers) == (spec.max_slots, spec.max_servers):
        return ""
    if elastic is None:
        return f"size stays {workers} until the cell comes to {BOUNDARY if spec.max_servers else 'an elastic loop'}"
    if spec.max_servers:
        return f"size stays {workers}: this cell calls no {BOUNDARY} where it has saved, and is not --resumable"
    return f"size stays {workers}: this cell has no elastic loop"


def begins_again(elastic: bool | None, attempts: int, *, preempted: bool, step: int | None = None) -> str:
    """Describe how a job begins again after it lost its slots.

    `elastic`: the cell had come to an elastic loop, without which nothing is committed, in the last of `attempts`
    attempts. Such a cell commits when it is preempted too, then at `step`.
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
    """Reason why the slot is out, or its other users."""
    attempt: int | None = None
    uid: int | None = None
    """UNIX id of the owner; None: the owner connected by a key."""
    foreign: tuple[GpuProcess, ...] = ()
    """Processes on the slot that don't belong to the user who has leased it."""
    for_servers: bool = False
    drained: str = ""
    """Author and reason of the drain of this slot; empty if it is not drained."""
    pinned: str = ""
    """Session that retains the slot after a cell, and the reason; `job` is that cell. Empty if none does."""


class HostInfo(Record, frozen=True, kw_only=True):
    """Facts about a host other than the daemon's machine, without its slots."""

    name: str
    url: str = field(name="reach")
    until: float | None = None
    """End of the host; see `Host`."""
    unreachable: str = ""
    """Reason why the requester can't reach the host now; empty if none is known."""


def other_machines(hosts: Iterable[Host], user: str) -> tuple[HostInfo, ...]:
    """Return the hosts that are not the daemon's machine, as a user sees them."""
    return tuple(
        HostInfo(name=host.name, url=host.url, until=host.until, unreachable=host.unreachable.get(user, ""))
        for host in hosts
        if host.url
    )


class PolicyInfo(Record, frozen=True, kw_only=True):
    """A policy as the picker shows it."""

    name: str
    summary: str
    active: bool = False
    options: dict[str, Any] = {}
    """Present values for the active policy, defaults for the others."""
    schema: dict[str, Any] = {}
