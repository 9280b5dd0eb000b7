"""When a plan goes to disk with the news that it answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_elastic.scheduler.planner import FEW, Planner
from jupyter_elastic.scheduler.policy_runner import Adviser
from jupyter_elastic.types import Propose, View

SOURCE = "class Mine:\n    def plan(self, view):\n        return {}\n"


def house(jobs: int, *, source: str = "", wants: bool = True) -> Any:
    """What the planner needs of a daemon with so many jobs; it keeps its commands."""
    state = SimpleNamespace(policy="fifo", policy_options={}, policy_source=source, jobs=dict.fromkeys(range(jobs)))
    core = SimpleNamespace(state=state, wants_plan=wants, view=lambda now: View(now=now, hosts=(), jobs=()))
    found = SimpleNamespace(core=core, failing=None, now=lambda: 1.0, next_id=lambda: "x", commands=[])
    found.command = found.commands.append
    return found


@pytest.mark.parametrize(
    ("changed", "planned"),
    [
        ({"jobs": 1}, True),
        ({"jobs": FEW + 1}, False),
        ({"jobs": 1, "wants": False}, False),
        ({"jobs": 1, "source": SOURCE}, False),
    ],
)
def test_only_what_is_quick_and_ours_is_asked_at_once(changed: dict[str, Any], planned: bool) -> None:
    async def story() -> None:
        pool, adviser = house(**changed), Adviser()
        await adviser.policy("fifo", {}, "")
        planner = Planner(pool, adviser, lambda: 0.0)
        planner.at_once()
        assert pool.commands == [], "before it serves it is not asked"
        serving = asyncio.create_task(planner.run())
        await asyncio.sleep(0)
        planner.at_once()
        assert [type(wish) for wish in pool.commands] == [Propose] * planned
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(story())
