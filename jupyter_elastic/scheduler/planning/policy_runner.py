"""Run the active policy off the I/O loop and with a deadline.

A policy of this package runs in a thread. Any other one, installed or given as text, is untrusted and runs in a process
of its own (`policy_host`), which is ended when it is too slow. Knows threads and policies; must not know the core's
state: it receives a view.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, TypeAlias

import msgspec

from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.scheduler.planning.policy_host import START_S, HostedPolicy
from jupyter_elastic.types import Plan, Policy, View

DEADLINE_S = 5.0

AnyPolicy: TypeAlias = Policy | HostedPolicy


class PolicyProblem(Exception):
    """The policy raised, was too slow, or returned no valid plan; the text tells which."""


class PolicyRunner:
    """The active policy, made again when name, options or source change."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._made: tuple[tuple[str, dict[str, Any], str], AnyPolicy] | None = None

    def make(self, name: str, options: dict[str, Any], source: str) -> AnyPolicy:
        """Make a policy by its name or from its source. NotFound or BadRequest if that fails. May block."""
        if source or plugins.untrusted(name):
            return HostedPolicy(name, options, source, self._deadline_s)
        return plugins.make_policy(name, options)

    def check(self, name: str, options: dict[str, Any], source: str) -> None:
        """Raise as `make` if such a policy can't be made. May block."""
        made = self.make(name, options, source)
        if isinstance(made, HostedPolicy):
            made.close()

    async def policy(self, name: str, options: dict[str, Any], source: str) -> AnyPolicy:
        """Return the policy, the same object as long as its name, options and source stay."""
        wanted = (name, options, source)
        if self._made is None or self._made[0] != wanted:
            self.close()
            self._made = (wanted, await asyncio.to_thread(self.make, name, options, source))
        return self._made[1]

    async def plan(self, policy: AnyPolicy, view: View) -> Plan:
        """Return the policy's plan for this view; PolicyProblem if there is none in time."""
        if isinstance(policy, HostedPolicy):  # that one keeps the deadline by itself, after a new process has started
            return await ask(policy, view, START_S + 3 * self._deadline_s)
        return await ask(policy, view, self._deadline_s)

    def close(self) -> None:
        """Forget the policy, and end its process if it has one."""
        if self._made is not None and isinstance(self._made[1], HostedPolicy):
            self._made[1].close()
        self._made = None


async def ask(policy: AnyPolicy, view: View, deadline_s: float = DEADLINE_S) -> Plan:
    """Return the policy's plan for this view; PolicyProblem if there is none within `deadline_s` seconds."""
    answer: Future[Plan] = Future()
    answer.set_running_or_notify_cancel()  # who no longer waits can't take it from the thread

    def think() -> None:
        try:
            answer.set_result(checked(policy, view))
        except Exception as error:
            answer.set_exception(PolicyProblem(f"{type(error).__name__}: {error}"))

    # No executor's thread: the interpreter would wait for it at its end.
    threading.Thread(target=think, name=f"policy {policy.name}", daemon=True).start()
    try:
        async with asyncio.timeout(deadline_s):
            return await asyncio.wrap_future(answer)
    except TimeoutError:
        raise PolicyProblem(f"it gave no plan within {deadline_s:g} s") from None


def checked(policy: AnyPolicy, view: View) -> Plan:
    """Return a plain copy of the plan that shares nothing with the policy.

    The core ignores jobs that have ended since the view was made; a number that the view did not contain shows only
    here.
    """
    plan: Any = policy.plan(view)
    if not isinstance(plan, Plan):
        raise TypeError(f"plan() gave back {type(plan).__name__}, not a Plan")
    copy: Plan = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan)
    unknown = sorted(copy.sizes.keys() - {job.job for job in view.jobs})
    if unknown:
        raise ValueError(f"illegal plan: there is no unfinished job {unknown[0]}")
    return copy
