"""Ask the policy for plans, pass them to the core, and switch policies.

The policy is asked when an event happened that it should see, and at its own interval, with pauses for the daemon's
other work. Its plan, or the reason why there is none, goes to the core as a stimulus. Knows the policy runner and the
loop; must not know sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from msgspec.structs import replace

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.core import demand
from jupyter_elastic.scheduler.core.plan import illegal
from jupyter_elastic.scheduler.journal.state_store import StateStore
from jupyter_elastic.scheduler.metrics import SHORT_S, Histogram
from jupyter_elastic.scheduler.planning.policy_runner import PolicyRunner
from jupyter_elastic.types import PolicyFailed, Propose, Stimulus, UsePolicy
from jupyter_elastic.types.errors import ElasticError

PAUSE_S = 0.02
"""Shortest pause in seconds between two plans; a slow policy pauses for four times its own time, 1 s at most."""
LONGEST_PAUSE_S = 1.0

log = logging.getLogger(__name__)


class Planner:
    """Loop that asks the policy for plans."""

    def __init__(self, store: StateStore, runner: PolicyRunner, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._runner = runner
        self._asking = asyncio.Lock()
        """Lock because a policy in a process of its own answers one request at a time."""
        self._monotonic = monotonic
        self._wanted = asyncio.Event()
        self._news_seq = 0
        self._again = False
        self._ask_at: float | None = None
        self.took = Histogram(SHORT_S)
        """Seconds for each answer of the policy."""

    def news(self, seq: int) -> None:
        """Note that the core wants a plan; `seq` is the last event that a policy may want to see (0: none)."""
        self._news_seq = max(self._news_seq, seq)
        self._wanted.set()

    async def switch(self, stimulus: UsePolicy) -> wire.AnyAnswer:
        """Switch the policy if it can be made, which is tried first and may take seconds; return once it is on disk."""
        if self._store.failing is None:
            await asyncio.to_thread(self._runner.check, stimulus.name, stimulus.options, stimulus.source)
        self._store.command(stimulus)
        self._store.commit()
        if self._store.failing is not None:
            raise self._store.failing
        return wire.Done()

    async def demand(self, at_most: int) -> wire.AnyAnswer:
        """Compute how many of `at_most` more slots the policy would give away; `Refused` if it gives no legal plan."""
        state = self._store.core.state
        try:
            async with self._asking:
                policy = await self._runner.policy(state.policy, state.policy_options, state.policy_source)
                view = demand.with_room(self._store.core.view(self._store.now()), at_most)
                plan = await self._runner.plan(policy, view)
        except Exception as problem:  # as in `_round`
            return wire.Refused(code="error", message=f"policy {state.policy}: {problem}"[:2000])
        if fault := illegal(plan, view):
            return wire.Refused(code="error", message=f"policy {state.policy}: illegal plan: {fault}"[:2000])
        without = replace(view, hosts=view.hosts[:-1])
        return wire.Demand(slots=demand.unmet(without, plan, at_most))

    async def run(self) -> None:
        """Ask the policy for plans, for ever."""
        while True:
            await self._reason()
            if self._store.failing is not None:
                await asyncio.sleep(LONGEST_PAUSE_S)
                self._wanted.set()
                continue
            took = await self._round()
            await asyncio.sleep(min(max(PAUSE_S, 4 * took), LONGEST_PAUSE_S))

    async def _round(self) -> float:
        """Ask for one plan and step its result; return the seconds that the policy took."""
        store = self._store
        state = store.core.state
        name = state.policy
        began = self._monotonic()
        stimulus: Stimulus
        try:
            async with self._asking:
                policy = await self._runner.policy(name, state.policy_options, state.policy_source)
                began = self._monotonic()  # loading a policy's libraries is not its thinking
                self._ask_at = None if policy.interval_s is None else began + policy.interval_s
                seen = store.core.state.seq
                plan = await self._runner.plan(policy, store.core.view(store.now()))
            # What came meanwhile it could not know, but the core will take the plan for an answer to it.
            self._again = self._news_seq > seen
            stimulus = Propose(**store.stamp(), plan=plan, policy=name)
        except Exception as problem:  # whatever an untrusted policy does, it costs a plan and nothing else
            log.warning("policy %s: %s", name, problem)
            reason = str(problem)[:2000] or type(problem).__name__
            stimulus = PolicyFailed(**store.stamp(), policy=name, reason=reason)
        took = self._monotonic() - began
        self.took.observe(took)
        with contextlib.suppress(ElasticError):
            store.command(stimulus)
            store.commit()
        if store.core.wants_plan:
            self._wanted.set()
        return took

    async def _reason(self) -> None:
        """Wait until there is a reason to ask."""
        if self._again:
            self._again = False
            return
        while True:
            timeout = None if self._ask_at is None else max(self._ask_at - self._monotonic(), 0.0)
            try:
                async with asyncio.timeout(timeout):
                    await self._wanted.wait()
            except TimeoutError:
                if self._store.core.state.jobs:
                    return
                self._ask_at = None  # nobody is there to plan for; the next submit is a reason of its own
                continue
            self._wanted.clear()
            if self._store.core.wants_plan:
                return
