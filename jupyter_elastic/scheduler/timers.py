"""Do the daemon's timed work: time limits of jobs, polling hosts, forgetting, snapshots, silent peers.

Knows the clock and the state store; must not know requests.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging

from jupyter_elastic.hostfiles import host_failures, shared_hosts
from jupyter_elastic.platform import paths
from jupyter_elastic.scheduler.agents import Agents
from jupyter_elastic.scheduler.clock import Clock
from jupyter_elastic.scheduler.core.keys import expired
from jupyter_elastic.scheduler.journal.refusals import Refusals
from jupyter_elastic.scheduler.journal.restore import LONG
from jupyter_elastic.scheduler.journal.state_store import StateStore
from jupyter_elastic.scheduler.metrics import SHORT_S, Histogram
from jupyter_elastic.scheduler.net.transport import Transport
from jupyter_elastic.scheduler.settings import Settings
from jupyter_elastic.scheduler.slots import foreign
from jupyter_elastic.scheduler.slots.slot_sources import all_hosts, kept_from, shared_pool, without_own
from jupyter_elastic.types import Forget, Host, HostsReported, Refuse, SlotId, Tick, WithdrawKey
from jupyter_elastic.types.texts import also_used_by

HOUSEKEEPING_S = 1.0
PEER_SILENCE_S = 3600.0
SCAN_S = 10.0
"""Seconds between polls of the hosts."""
NOTES_S = 0.25
"""Seconds between checks for changes of the other hosts or notes of their failures."""
CONFIRM_S = 2.0
"""Seconds until the next poll of the hosts after a foreign process was first seen."""
FORGET_S = 600.0
"""Seconds between searches for ended jobs to forget."""
LOGGED = ("Hello", "connection")
"""Refusals that are also logged, counted as in the journal: of waiting agents, floods and connections."""
TRIM_S = 10.0
"""Minimum seconds between releases of free memory to the system, done only if something has happened since."""

log = logging.getLogger(__name__)

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc alone keeps all memory below a used block: 60 MB after a thousand connections. Other libraries don't."""


class Timers:
    """Alarms and regular work of the daemon."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: StateStore,
        agents: Agents,
        transport: Transport,
        refusals: Refusals,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._agents = agents
        self._transport = transport
        self._refusals = refusals
        self._alarm: asyncio.TimerHandle | None = None
        self._forget_at = self._trim_at = clock.monotonic()
        self._trimmed = (-1, -1)
        self._suspicious: frozenset[foreign.Sighting] = frozenset()
        """Processes that were foreign on leased slots at the last poll of the hosts."""
        self._poll_soon = False
        self.lag = Histogram(SHORT_S)
        """Seconds by which the loop was late for the regular work."""

    def set_alarm(self) -> None:
        """Set the alarm for the next time limit or other deadline in the core."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        now = self._store.now()
        due = self._store.core.next_wakeup(now)
        if due is not None:
            self._alarm = asyncio.get_running_loop().call_later(max(due - now, 0.0) + 0.001, self._tick)

    def _tick(self) -> None:
        self._store.observe(Tick(**self._store.stamp()))
        self._store.commit()
        self.set_alarm()

    async def housekeeping(self) -> None:
        """Do the regular work, for ever."""
        while True:
            due = self._clock.monotonic() + HOUSEKEEPING_S
            await asyncio.sleep(HOUSEKEEPING_S)
            self.lag.observe(max(self._clock.monotonic() - due, 0.0))
            if self._store.try_again():
                self._agents.report_all()
            self._transport.connections.end_silent()
            self._transport.peers.end_changed()
            self._agents.end_leases()
            self._agents.drop_silent()
            self._transport.prune(PEER_SILENCE_S)
            if self._store.failing is None:
                self._forget()
                self._end_terms()
                self.tell_refusals(self._clock.monotonic())
                self._store.commit()
                self._store.save_snapshot(4 * LONG)
            self._trim()

    def _forget(self) -> None:
        if self._clock.monotonic() < self._forget_at:
            return
        self._forget_at = self._clock.monotonic() + FORGET_S
        before = self._store.now() - self._settings.keep_s
        self._store.observe(Forget(**self._store.stamp(), before=before, keep=self._settings.keep_jobs))

    def tell_refusals(self, now: float) -> None:
        """Journal the refusals that are due by `now`."""
        if self._store.failing is None:
            for one in self._refusals.due(now):
                told = {name: getattr(one, name) for name in ("ask", "code", "count", "message", "about")}
                self._store.observe(Refuse(**self._store.stamp(one.user), **told))
                if one.ask in LOGGED:
                    about = {"user": one.user, "job": one.about}
                    log.warning("refused to %s %d times: %s", one.user, one.count, one.message, extra=about)

    def _end_terms(self) -> None:
        for key in expired(self._store.core.state, self._store.now()):
            self._store.observe(WithdrawKey(**self._store.stamp(), key=key, reason="its term is over"))

    def _trim(self) -> None:
        """Release free memory, unless nothing has happened since the last time."""
        done = (self._store.core.state.seq, self._transport.connections.ended)
        if _malloc_trim is not None and done != self._trimmed and self._clock.monotonic() >= self._trim_at:
            _malloc_trim(0)
            self._trimmed, self._trim_at = done, self._clock.monotonic() + TRIM_S

    async def watch_hosts(self) -> None:
        """Poll the hosts again and again, for ever."""
        state = self._settings.state_dir

        def noted() -> tuple[object, ...]:
            files = host_failures.version(state, paths.runtime_dir_of(state))
            return files, host_failures.changed(shared_hosts.path())

        seen = noted()
        while True:
            due = self._clock.monotonic() + (CONFIRM_S if self._poll_soon else SCAN_S)
            while self._clock.monotonic() < due and noted() == seen:  # noqa: ASYNC110 - files have no events
                await asyncio.sleep(NOTES_S)
            seen = noted()
            try:
                self._report(await asyncio.to_thread(self._hosts, self._slots_held()))
            except Exception as problem:
                log.warning("the hosts can't be seen; the last ones stand: %s", problem)
            else:
                self._store.commit()

    def poll_hosts(self) -> None:
        """Poll the hosts once. Raises what the source raises."""
        self._report(self._hosts(self._slots_held()))

    def _hosts(self, held: frozenset[SlotId]) -> tuple[Host, ...]:
        settings = self._settings
        if settings.shared:
            return shared_pool(settings.source, held)
        return all_hosts(settings.source, held, settings.state_dir if settings.personal else None)

    def _report(self, hosts: tuple[Host, ...]) -> None:
        hosts = without_own(hosts, self._slots_held())  # a job may have started while the source was looking
        before = self._suspicious
        hosts, self._suspicious = foreign.judge(hosts, self._holders(), before)
        self._poll_soon = bool(self._suspicious - before)
        self._log_foreign(hosts)
        hosts = kept_from(hosts, self._agents.failed_hosts)
        self._store.observe(HostsReported(**self._store.stamp(), hosts=hosts))

    def _log_foreign(self, hosts: tuple[Host, ...]) -> None:
        slots = self._store.core.state.slots
        for host in hosts:
            for slot in host.slots:
                known = slots.get(host.slot_id(slot.index))
                if slot.processes and known is not None and known.foreign != slot.processes:
                    job = known.job or known.retained_by
                    owner = None if job is None else self._store.core.state.owner_of(job)
                    log.warning("%s, leased to job %s, is %s", host.slot_id(slot.index), job,
                                also_used_by(slot.processes), extra={"job": job, "user": owner})  # fmt: skip

    def _holders(self) -> dict[SlotId, foreign.Holder]:
        state = self._store.core.state
        return {
            slot: foreign.Holder(job.job, job.attempt, state.ids.get(job.owner))
            for job in (*state.active_jobs(), *state.retained(exclusive=True))
            for slot in (*job.slots, *job.draining, *(job.retention.slots if job.retention else ()))
        }

    def _slots_held(self) -> frozenset[str]:
        slots = self._store.core.state.slots
        return frozenset(slot for slot, found in slots.items() if (found.job or found.retained_by) is not None)
