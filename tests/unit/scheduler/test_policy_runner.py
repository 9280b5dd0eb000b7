"""Asking a policy, and no longer wanting to know."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jupyter_elastic.scheduler.planning.policy_runner import ask
from jupyter_elastic.types import Plan, View


class Slow:
    name = "slow"
    interval_s = None

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()

    def plan(self, _view: View) -> Plan:
        self.asked.set()
        self.go.wait(60)
        return Plan(sizes={})


def test_who_is_cancelled_as_the_plan_comes_is_cancelled() -> None:
    """`asyncio.wait_for` of Python 3.11 gives the plan instead: a daemon that was told to end went on for ever."""

    async def story() -> None:
        policy = Slow()
        asking = asyncio.create_task(ask(policy, View(now=0.0, hosts=(), jobs=()), 60))
        assert await asyncio.to_thread(policy.asked.wait, 60)
        policy.go.set()
        thread = next(thread for thread in threading.enumerate() if thread.name == "policy slow")
        thread.join()  # its plan waits for the loop now
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(story())
