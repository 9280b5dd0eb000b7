"""Run one pool's daemon: it wires the parts together and serves until it is stopped. It decides nothing.

`requests` answers all frames that came in and the state store steps their stimuli; after the last one, one commit puts
the events on disk, and only then the answers go out, the subscribers get the events and the agents their orders. All of
it runs in the loop's one thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from math import inf

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler import metrics, policies, requests
from jupyter_elastic.scheduler.access import authenticators
from jupyter_elastic.scheduler.access.visibility import Visibility
from jupyter_elastic.scheduler.agents import Agents
from jupyter_elastic.scheduler.clock import Clock
from jupyter_elastic.scheduler.event_streams import Subscriptions
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.scheduler.journal.queries import AuditQuery, HistoryQuery, UsageQuery
from jupyter_elastic.scheduler.journal.refusals import Refusals
from jupyter_elastic.scheduler.journal.state_store import StateStore
from jupyter_elastic.scheduler.net.transport import Transport
from jupyter_elastic.scheduler.planning.planner import Planner
from jupyter_elastic.scheduler.planning.policy_runner import PolicyRunner
from jupyter_elastic.scheduler.responder import Responder
from jupyter_elastic.scheduler.settings import Settings
from jupyter_elastic.scheduler.timers import Timers
from jupyter_elastic.types import (
    AnyEffect,
    AuthenticatorContext,
    Credentials,
    Event,
    JobProgressed,
    KeyRegistered,
    KeyRevoked,
    UsePolicy,
    UseShares,
)
from jupyter_elastic.types.errors import (
    JournalError,
)

GUEST = -1
"""Invalid UNIX id, for a name that belongs to a user of a Hub and so to no UNIX user."""
SHARES_S = 1.0
"""Seconds between checks of the shares file for changes."""

log = logging.getLogger(__name__)


class _Stopped(Exception):
    """Ends the daemon's tasks."""


class Daemon:
    """State, journal and sockets of one pool."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        """Open the journal and read the state. Raises JournalError as `Journal`."""
        clock = clock or Clock()
        self.settings = settings
        self.rights = rights = settings.rights
        self.endpoints: list[str] = []
        self.store = store = StateStore(
            Journal(settings.state_dir / "journal.sqlite"), settings.shares.shares, clock, lease_s=settings.lease_s
        )
        context = AuthenticatorContext(
            folder=str(settings.state_dir),
            key_table=str(settings.key_table or settings.state_dir / "keys.txt"),
            key_table_required=settings.key_table is not None,
            uid_of=self._id_of,
            registered=self._registered,
        )
        active = authenticators.make(settings.authenticators, context)
        names = {uid: name for name, uid in rights.ids.items()}
        self._counted, self._started_at = metrics.Counted(), clock.now()
        self._tasks, self._stopping, refusals = asyncio.TaskGroup(), asyncio.Event(), Refusals()
        self._responder = responder = Responder(
            settings.limits, rights, store, clock.monotonic, self._counted, refusals, self._tasks
        )
        store.reply, store.committed, store.reloaded = responder.reply, self._committed, self._reloaded
        self.transport = responder.transport = Transport(
            responder.take,
            responder.commit,
            clock.monotonic,
            connections_by_user=settings.limits.connections,
            is_admin=rights.is_admin,
            is_barred=responder.allowances.overdrawn,
            admit=None if settings.limits.asks_per_s == inf else responder.admit,
            authenticators=authenticators.Authenticators(active, rights.admins, names),
        )
        visibility = Visibility(rights, hide_names=settings.hide_names)
        self._agents = Agents(store, self.transport, clock.monotonic)
        self._subscriptions = Subscriptions(store, self.transport, visibility, rights, settings.limits)
        self._runner = PolicyRunner(settings.deadline_s)
        self._planner = Planner(store, self._runner, clock.monotonic)
        self._timers = Timers(settings, clock, store, self._agents, self.transport, refusals)
        service = requests.Service(str(settings.state_dir), self._started_at, self.endpoints, self._metrics, self.stop)
        queries = (UsageQuery(store.journal), AuditQuery(store.journal), HistoryQuery(store.journal))
        parts = (settings, settings.shares, rights, visibility, store, self._agents, self._subscriptions,
                 self._planner, service, *queries)  # fmt: skip
        responder.parts = {type(part): part for part in parts}
        self._fatal: JournalError | None = None

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop()`; `ready` is called once the sockets are open."""
        try:
            self._start()
            if ready is not None:
                ready()
            await self._serve()
            if self._fatal is not None:
                raise self._fatal
            self._timers.tell_refusals(inf)
            self.store.commit()
        finally:
            self._runner.close()
            self.transport.close()
            self.store.save_snapshot()
            self.store.journal.close()

    def stop(self) -> None:
        """End the daemon; jobs go on."""
        asyncio.get_running_loop().call_later(0.02, self._stopping.set)  # the answer to who asked for it goes out first

    async def _serve(self) -> None:
        timers = self._timers
        try:
            async with self._tasks:
                for work in (
                    timers.housekeeping,
                    timers.watch_hosts,
                    self._watch_shares,
                    self._planner.run,
                    self._responder.run,
                    self._until_stopped,
                ):
                    self._tasks.create_task(work())
        except* _Stopped:
            pass

    async def _watch_shares(self) -> None:
        """Use the shares file anew whenever it has changed."""
        file = self.settings.shares
        while file.path is not None:
            await asyncio.sleep(SHARES_S)
            if file.changed():
                log.info("the shares have changed")
                self.store.use_shares(file.shares)
                self._planner.news(0)
            self._note_shares()
            self.store.commit()

    def _note_shares(self) -> None:
        """Journal the entitlements; repeated, because the journal may not have been writable."""
        shares = self.settings.shares.shares
        members = {name: group.members for name, group in shares.groups.items()}
        stamp = self.store.stamp()
        self.store.observe(UseShares(**stamp, weights=shares.weights, quotas=shares.quotas, groups=members))

    async def _until_stopped(self) -> None:
        await self._stopping.wait()
        raise _Stopped

    def _start(self) -> None:
        settings, store = self.settings, self.store
        # A pool that has a history keeps the policy that was chosen last.
        policy = settings.policy or ("" if store.core.state.seq else self._default())
        socket = self.transport.listen_unix(str(settings.socket), shared=settings.shared, group=settings.group)
        self.endpoints.append(socket)
        if settings.tcp and settings.curve is not None:
            self.endpoints.append(self.transport.listen_tcp(settings.tcp, settings.curve))
        self._timers.poll_hosts()
        self._note_shares()
        if policy and policy != store.core.state.policy:
            self._runner.check(policy, {}, "")
            reason = "the daemon was started with it" if settings.policy else "the default of a new pool"
            store.command(UsePolicy(**store.stamp(), name=policy, reason=reason))
        if not store.commit():
            raise JournalError(str(store.failing))
        self._timers.set_alarm()
        self._planner.news(0)
        self.transport.start()
        state = store.core.state
        log.info(
            "pool %s: %d events (%d read), %d unfinished jobs, %d slots, policy %s, at %s",
            self.settings.state_dir, state.seq, store.replayed, len(state.jobs), state.capacity, state.policy,
            ", ".join(self.endpoints),
        )  # fmt: skip

    def _id_of(self, name: str) -> int | None:
        """Return the UNIX id that this name belongs to; None if to none yet."""
        state = self.store.core.state
        if any(key.user == name for key in tuple(state.registered.values())):  # a copy: other threads ask
            return self.rights.ids.get(name, GUEST)
        return self.rights.ids.get(name, state.ids.get(name))

    def _registered(self, key: str) -> KeyRegistered | None:
        """Return the registration of a key while its term lasts."""
        found = self.store.core.state.registered.get(key)
        return found if found is not None and found.expires_at > self.store.now() else None

    def _default(self) -> str:
        shared = self.settings.shared or bool(self.settings.tcp)
        return policies.SHARED_DEFAULT if shared else policies.DEFAULT

    def _metrics(self) -> wire.Metrics:
        """Return all figures of this daemon."""
        store, connections = self.store, self.transport.connections
        sources = metrics.Sources(
            counted=self._counted,
            plans=self._planner.took,
            commits=store.commits,
            lag=self._timers.lag,
            started_at=self._started_at,
            journal_bytes=store.journal.size,
            writable=store.failing is None,
            connections=len(connections),
            max_connections=connections.most,
            agents=len(self._agents),
        )
        problem = "" if store.failing is None else str(store.failing)
        return wire.Metrics(families=metrics.families(store.core.state, store.now(), sources), problem=problem)

    def _committed(self, events: Sequence[Event], effects: Sequence[AnyEffect]) -> None:
        self._subscriptions.publish(events)
        self._counted.take(events, self.store.core.state)
        if keys := {event.data.key for event in events if isinstance(event.data, KeyRegistered | KeyRevoked)}:
            self.transport.peers.judge_again({Credentials(key=key) for key in keys})
        self._agents.execute(effects)
        if events:
            self._timers.set_alarm()
            if self.store.core.wants_plan:
                news = any(not isinstance(event.data, JobProgressed) for event in events)
                self._planner.news(events[-1].seq if news else 0)

    def _reloaded(self, problem: JournalError | None) -> None:
        """Send all orders again, as some may have been lost; end the daemon if the state can't be read."""
        self._agents.greet_again()
        if problem is not None:
            self._fatal = problem
            self._stopping.set()
