"""When the policy is asked, and what becomes of its answer.

It is asked when something happened that it should see, and at its own interval; not more often than is good for the
rest. Its plan, or the reason why there is none, goes to the core as a stimulus. Knows the adviser and the loop; must
not know sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from jupyter_elastic.errors import ElasticError, JournalError
from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.policy_runner import Adviser, checked
from jupyter_elastic.types import PolicyFailed, Propose, Stimulus

PAUSE_S = 0.02
"""Shortest pause between two questions to the policy; a slow one pauses four times its own time, 1 s at most."""
FEW = 32
"""Jobs; a policy of our own plans for so many in less time than a thread takes to start."""
LONGEST_PAUSE_S = 1.0

log = logging.getLogger(__name__)


class House(Protocol):
    """What the planner needs of the daemon."""

    core: Core
    failing: JournalError | None

    def now(self) -> float:
        """Wall time."""
        ...

    def next_id(self) -> str:
        """A new id for a stimulus."""
        ...

    def command(self, stimulus: Stimulus) -> None:
        """Step a stimulus."""
        ...

    def commit(self) -> bool:
        """Put what was stepped on disk, and tell of it."""
        ...


class Planner:
    """Asks the policy at the right moments."""

    def __init__(self, house: House, adviser: Adviser, monotonic: Callable[[], float]) -> None:
        self._house = house
        self._adviser = adviser
        self._monotonic = monotonic
        self._wanted = asyncio.Event()
        self._news_seq = 0
        self._again = False
        self._idle = False
        """It waits for a reason."""
        self._ask_at: float | None = None

    def news(self, seq: int) -> None:
        """The core wants a plan; `seq` is the last event that a policy may want to know of (0: none in particular)."""
        self._news_seq = max(self._news_seq, seq)
        self._wanted.set()

    def at_once(self) -> None:
        """Ask now, so that the plan goes to disk with the news that it answers: where nobody waits longer for that."""
        house = self._house
        state = house.core.state
        if not self._idle or house.failing is not None or not house.core.wants_plan or len(state.jobs) > FEW:
            return
        policy = self._adviser.own(state.policy, state.policy_options, state.policy_source)
        if policy is None:
            return
        began = self._monotonic()
        try:
            plan = checked(policy, house.core.view(house.now()))
        except Exception:
            log.exception("policy %s", state.policy)  # asked again as everybody is, and then it counts
            return
        self._ask_at = None if policy.interval_s is None else began + policy.interval_s
        with contextlib.suppress(ElasticError):
            house.command(Propose(at=house.now(), by="daemon", id=house.next_id(), plan=plan, policy=state.policy))

    async def run(self) -> None:
        """Ask, for ever."""
        while True:
            await self._reason()
            if self._house.failing is not None:
                await asyncio.sleep(LONGEST_PAUSE_S)
                self._wanted.set()
                continue
            took = await self._round()
            await asyncio.sleep(min(max(PAUSE_S, 4 * took), LONGEST_PAUSE_S))

    async def _round(self) -> float:
        """One question and what becomes of it; the seconds that the policy took."""
        house = self._house
        state = house.core.state
        name = state.policy
        began = self._monotonic()
        stimulus: Stimulus
        try:
            policy = await self._adviser.policy(name, state.policy_options, state.policy_source)
            began = self._monotonic()  # loading a policy's libraries is not its thinking
            self._ask_at = None if policy.interval_s is None else began + policy.interval_s
            seen = house.core.state.seq
            plan = await self._adviser.plan(policy, house.core.view(house.now()))
            # What came meanwhile it could not know, but the core will take the plan for an answer to it.
            self._again = self._news_seq > seen
            stimulus = Propose(at=house.now(), by="daemon", id=house.next_id(), plan=plan, policy=name)
        except Exception as problem:  # whatever a stranger's class does, it costs a plan and nothing else
            log.warning("policy %s: %s", name, problem)
            reason = str(problem)[:2000] or type(problem).__name__
            stimulus = PolicyFailed(at=house.now(), by="daemon", id=house.next_id(), policy=name, reason=reason)
        took = self._monotonic() - began
        with contextlib.suppress(ElasticError):
            house.command(stimulus)
            house.commit()
        if house.core.wants_plan:
            self._wanted.set()
        return took

    async def _reason(self) -> None:
        """Wait until there is a reason to ask."""
        if self._again:
            self._again = False
            return
        while True:
            timeout = None if self._ask_at is None else max(self._ask_at - self._monotonic(), 0.0)
            self._idle = True
            try:
                async with asyncio.timeout(timeout):
                    await self._wanted.wait()
            except TimeoutError:
                if self._ask_at is not None and self._ask_at > self._monotonic():
                    continue  # it was asked meanwhile
                if self._house.core.state.jobs:
                    return
                self._ask_at = None  # nobody is there to plan for; the next submit is a reason of its own
                continue
            finally:
                self._idle = False
            self._wanted.clear()
            if self._house.core.wants_plan:
                return
