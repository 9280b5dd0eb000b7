"""Asks the policy, off the I/O loop and with a deadline.

The policy is a stranger: whatever it does, a plan or a reason why there is none comes back in time. Knows threads and
policies; must not know the books: it is handed a view.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from typing import Any

import msgspec

from jupyter_elastic.types import Plan, Policy, View

DEADLINE_S = 5.0


class PolicyProblem(Exception):
    """The policy raised, was too slow, or gave back what is no plan; the text says which."""


class _TooSlow(BaseException):
    """Put into a thread that has used up its time; no Exception, so that a policy's own `except` lets it through."""


async def ask(policy: Policy, view: View, deadline_s: float = DEADLINE_S) -> Plan:
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
            plan = _checked(policy.plan(view))
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
        return await asyncio.wait_for(answer, deadline_s)
    except TimeoutError:
        _interrupt(thread)
        raise PolicyProblem(f"it gave no plan within {deadline_s:g} s") from None


def _checked(plan: Any) -> Plan:
    """A copy of the plan that shares nothing with the policy, without subclasses or surprises in its fields."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan() gave back {type(plan).__name__}, not a Plan")
    return msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan)


def _interrupt(thread: threading.Thread) -> None:
    """End a thread that loops in Python: the exception is raised at its next bytecode. One in C ends when C returns."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_TooSlow))
