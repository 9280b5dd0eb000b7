"""Asks the policy, off the I/O loop and with a deadline.

The policy is a stranger: whatever it does, a plan or a reason why there is none comes back in time. Knows threads and
policies; must not know the books: it is handed a view.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import threading
from typing import Any, TypeAlias

import msgspec

from jupyter_elastic.scheduler import plugins, policies
from jupyter_elastic.scheduler.policy_host import HostedPolicy
from jupyter_elastic.types import Plan, Policy, View

DEADLINE_S = 5.0

AnyPolicy: TypeAlias = Policy | HostedPolicy


class PolicyProblem(Exception):
    """The policy raised, was too slow, or gave back what is no plan; the text says which."""


class _TooSlow(BaseException):
    """Put into a thread that has used up its time; no Exception, so that a policy's own `except` lets it through."""


class Adviser:
    """Keeps the active policy, makes it again when name, options or text change, and asks it."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._made: tuple[str, AnyPolicy] | None = None

    def make(self, name: str, options: dict[str, Any], source: str) -> AnyPolicy:
        """A policy, by its name or from its text. NotFound or BadRequest where that can't be done. May block."""
        if source:
            return HostedPolicy(name, options, source, self._deadline_s)
        return plugins.make_policy(name, options)

    def check(self, name: str, options: dict[str, Any], source: str) -> None:
        """Whether such a policy can be made; raises as `make`."""
        made = self.make(name, options, source)
        if isinstance(made, HostedPolicy):
            made.close()

    def own(self, name: str, options: dict[str, Any], source: str) -> Policy | None:
        """The policy, where it is made already and one of this package's: no stranger, so that it may be asked here."""
        if self._made is None or self._made[0] != _key(name, options, source):
            return None
        made = self._made[1]
        if isinstance(made, HostedPolicy) or not type(made).__module__.startswith(policies.__name__):
            return None
        return made

    async def policy(self, name: str, options: dict[str, Any], source: str) -> AnyPolicy:
        """The policy, the same object as long as nothing of it changes."""
        key = _key(name, options, source)
        if self._made is None or self._made[0] != key:
            self.close()
            made = await asyncio.get_running_loop().run_in_executor(None, self.make, name, options, source)
            self._made = (key, made)
        return self._made[1]

    async def plan(self, policy: AnyPolicy, view: View) -> Plan:
        """The policy's plan for this view; PolicyProblem when there is none in time."""
        spare = 1.0 if isinstance(policy, HostedPolicy) else 0.0  # that one keeps the deadline by itself
        return await ask(policy, view, self._deadline_s, spare)

    def close(self) -> None:
        """Forget the policy, and end its process if it has one."""
        if self._made is not None and isinstance(self._made[1], HostedPolicy):
            self._made[1].close()
        self._made = None


async def ask(policy: AnyPolicy, view: View, deadline_s: float = DEADLINE_S, spare_s: float = 0.0) -> Plan:
    """The policy's plan for this view; PolicyProblem when there is none within `deadline_s` seconds."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Plan] = loop.create_future()

    def settle(plan: Plan | None, problem: str) -> None:
        if not answer.done():
            if plan is not None:
                answer.set_result(plan)
            else:
                answer.set_exception(PolicyProblem(problem))

    def think() -> None:
        plan, problem = None, ""
        try:
            plan = checked(policy, view)
        except _TooSlow:
            problem = "it was interrupted"
        except BaseException as error:  # a stranger's code may even call sys.exit
            problem = f"{type(error).__name__}: {error}"
        try:
            loop.call_soon_threadsafe(settle, plan, problem)
        except RuntimeError:  # the loop has gone: nobody waits any more
            return

    thread = threading.Thread(target=think, name=f"policy {policy.name}", daemon=True)
    thread.start()
    try:
        async with asyncio.timeout(deadline_s + spare_s):
            return await answer
    except TimeoutError:
        _interrupt(thread)
        raise PolicyProblem(f"it gave no plan within {deadline_s:g} s") from None


def _key(name: str, options: dict[str, Any], source: str) -> str:
    return json.dumps([name, options, source], sort_keys=True, default=str)


def checked(policy: AnyPolicy, view: View) -> Plan:
    """A copy of its plan that shares nothing with the policy, without subclasses or surprises in its fields.

    The core overlooks jobs that have ended since the view was made; that the policy has seen none of that number shows
    only here.
    """
    plan: Any = policy.plan(view)
    if not isinstance(plan, Plan):
        raise TypeError(f"plan() gave back {type(plan).__name__}, not a Plan")
    copy: Plan = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan)
    strangers = sorted(copy.sizes.keys() - {job.job for job in view.jobs})
    if strangers:
        raise ValueError(f"illegal plan: there is no unfinished job {strangers[0]}")
    return copy


def _interrupt(thread: threading.Thread) -> None:
    """End a thread that loops in Python: the exception is raised at its next bytecode. One in C ends when C returns."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_TooSlow))
