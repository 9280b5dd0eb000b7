"""Orders that only the owner's agent carries out."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import field

from jupyter_elastic.types.vocabulary import Count, JobId, JobSpec, Record, SlotId, Text


class Effect(Record, tag=True, frozen=True, kw_only=True):
    """An order, idempotent by (job, attempt, generation)."""

    job: JobId
    attempt: Count
    owner: str


class GroupOrder(Effect, frozen=True, kw_only=True):
    """An order that names the slots of a generation."""

    generation: Count
    slots: tuple[SlotId, ...]
    servers: Count = 0
    devices: dict[SlotId, str] = {}
    """GPU UUID by slot; empty on CPU hosts."""
    remote_hosts: tuple[str, ...] = field(name="elsewhere", default=())
    """Remote hosts among the hosts of these slots; a driver that has no URL for one of them starts nothing."""


class Launch(GroupOrder, frozen=True, kw_only=True):
    """Start an attempt on these slots."""

    spec: JobSpec
    lease_s: float = 0.0
    """Seconds of the attempt's lease; 0: it holds its slots until the agent reports otherwise."""


class Rescale(GroupOrder, frozen=True, kw_only=True):
    """Go on with exactly these slots."""

    draining: tuple[SlotId, ...] = ()
    """Slots that the attempt still has to release. The agent reports those without a process as released at once: an
    earlier generation that it never received, because this one overtook it, may have granted them."""


SAVE_GRACE_S = 180.0
"""Seconds that a preempted attempt may take to commit to disk before its driver ends it."""


class Stop(Effect, frozen=True, kw_only=True):
    """End the attempt; with `preempt`, after a commit to disk."""

    how: Literal["cancel", "preempt", "time limit"]
    reason: Text = ""


class WatchRetention(Effect, frozen=True, kw_only=True, tag="WatchPinned"):
    """Report when the suspended workers of an ended attempt's session are gone from these retained slots.

    A `Stop` for the attempt then means: end that session.
    """

    session: Text
    slots: tuple[SlotId, ...]
    until: float
    """Latest end of the session, in seconds since the epoch; the workers enforce it themselves."""


AttemptOrder: TypeAlias = Launch | Rescale | Stop
AnyEffect: TypeAlias = AttemptOrder | WatchRetention
