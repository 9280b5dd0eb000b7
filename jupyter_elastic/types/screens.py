"""What screens and commands see."""

from __future__ import annotations

from typing import Any, Literal

from jupyter_elastic.types.vocabulary import JobId, JobSpec, Phase, Progress, Record, SlotId


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


class SlotInfo(Record, frozen=True, kw_only=True):
    """A slot as the map shows it."""

    slot: SlotId
    state: Literal["free", "leased", "draining", "out"]
    job: JobId | None = None
    owner: str = ""
    device: str = ""
    reason: str = ""


class PolicyInfo(Record, frozen=True, kw_only=True):
    """A policy as the picker shows it."""

    name: str
    summary: str
    active: bool = False
    options: dict[str, Any] = {}
    """Present values for the active policy, defaults for the others."""
    schema: dict[str, Any] = {}
    """JSON schema of the options."""
