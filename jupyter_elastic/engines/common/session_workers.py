"""Lets an attempt's workers stay for their session when its cell is over."""

from __future__ import annotations

from jupyter_elastic.driver.session_cell import CellOfSession, SessionWorker, Stays
from jupyter_elastic.engines.common.attempt_state import AttemptState
from jupyter_elastic.engines.common.worker_processes import AttemptWorker
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.errors import EngineError


class SessionWorkers:
    """The workers of one attempt as those of its session; of an attempt without a session nothing stays."""

    def __init__(self, attempt: AttemptState) -> None:
        self._attempt = attempt

    def open(self, slots: tuple[SlotId, ...], engine: str) -> str:
        """Find or make the session of the cell; return the error, empty if there is none."""
        attempt, context, payload = self._attempt, self._attempt.context, self._attempt.payload
        if payload.session is None:
            return ""
        if context.shared and any(attempt.devices.get(slot) for slot in slots):
            return "sessions are not for the GPUs of a shared pool so far: run the cell without --session"
        if any(attempt.hosts.remote(slot) is not None for slot in slots):
            return f"a session's workers are on this host, and {', '.join(slots)} are not: ask for fewer slots"
        session = CellOfSession(payload.session, context.job, context.folder)
        try:
            session.open(
                size=len(slots),
                sizes=(context.min_slots, context.max_workers),
                engine=engine,
                python=context.python,
                kernel=payload.kernel,
            )
        except EngineError as problem:
            return str(problem)
        attempt.session = session
        attempt.machine.kept = not session.grows_at_once
        return ""

    def parked(self, member: AttemptWorker, pinned: str) -> None:
        """Record that a worker is through with this cell, and stays for its session."""
        if self._attempt.session is not None and not member.failed:
            stays = Stays(member.rank, member.member_id, member.slot, pinned)
            self._attempt.session.parked(member.process, stays)

    def goes_on_without(self, member: AttemptWorker) -> bool:
        """Return True if the session goes on: the worker stays, was asked to leave, never joined, or is replaced."""
        machine = self._attempt.machine
        stays = is_parked(member)
        outside = member.newcomer and not member.was_member
        replaced = machine.replaces and not (self._attempt.stopping or machine.ended or machine.finishing)
        return stays or outside or replaced or machine.removed(member.name)


def is_parked(member: AttemptWorker) -> bool:
    """Return True if the worker lives on as a worker of its session, and has left this cell alone."""
    return isinstance(member.process, SessionWorker) and member.process.parked
