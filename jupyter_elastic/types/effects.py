"""Orders that only the owner's agent carries out."""

from __future__ import annotations

from typing import Literal, TypeAlias

from jupyter_elastic.types.vocabulary import Count, JobId, JobSpec, Record, SlotId, Text


class Effect(Record, tag=True, frozen=True, kw_only=True):
    """An order, idempotent by (job, attempt, generation)."""

    job: JobId
    attempt: Count
    owner: str


class Membership(Effect, frozen=True, kw_only=True):
    """An order that names the slots of a generation."""

    generation: Count
    slots: tuple[SlotId, ...]
    servers: Count = 0
    devices: dict[SlotId, str] = {}
    """GPU UUID by slot; empty on CPU hosts."""
    elsewhere: tuple[str, ...] = ()
    """Hosts of these slots that are other machines than the daemon's: who knows no way there starts nothing."""


class Launch(Membership, frozen=True, kw_only=True):
    """Start an attempt on these slots."""

    spec: JobSpec
    lease_s: float = 0.0
    """The term of its lease; 0: the slots are its own until the agent says otherwise."""


class Rescale(Membership, frozen=True, kw_only=True):
    """Go on with exactly these slots."""

    draining: tuple[SlotId, ...] = ()
    """What the attempt still owes. It reports those without a process as released at once: an earlier generation that
    it never heard of, because this one overtook it, may have granted them."""


SAVE_GRACE_S = 180.0
"""How long an attempt that is preempted may take to commit to disk before its driver ends it."""


class Stop(Effect, frozen=True, kw_only=True):
    """End the attempt; with `preempt`, after a commit to disk."""

    how: Literal["cancel", "preempt", "time limit"]
    reason: Text = ""


class WatchPinned(Effect, frozen=True, kw_only=True):
    """The attempt has ended, and parked workers of its session keep these slots: report when they are gone.

    A `Stop` for the attempt then means: end that session.
    """

    session: Text
    slots: tuple[SlotId, ...]
    until: float
    """When the session ends at the latest, in seconds since the epoch; the workers see to that themselves."""


AttemptOrder: TypeAlias = Launch | Rescale | Stop
"""What an attempt's driver is told."""
AnyEffect: TypeAlias = AttemptOrder | WatchPinned
