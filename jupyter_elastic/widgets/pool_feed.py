"""Follows the pool for whoever shows it: the server extension, the notebook's widget, the terminal.

Begins from the daemon's answers, reads the history before them once, folds the events after them. Knows the client and
the pool's fold; must not know how anything is drawn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import SlotInfo
from jupyter_elastic.widgets.pool_model import PoolModel

HISTORY_EVENTS = 20_000
"""How many events the history reaches back at most."""


async def follow(client: AsyncClient, old: PoolModel | None = None) -> AsyncIterator[PoolModel]:
    """The pool's model after the daemon's answers and after each event since; DaemonUnreachable and the like.

    `old` is a model that was followed before: its history goes on.
    """
    model = await _present(client)
    past = old if old is not None and 0 < old.seq <= model.seq else _beginning(model)
    model.history, model.switches, model.notes = past.history, past.switches, past.notes
    yield model
    begun_at = model.seq
    async with aclosing(cast("Any", client.events(past.seq))) as events:
        async for event in events:
            if event.seq <= begun_at:
                past.fold(event)
                if event.seq < begun_at:
                    continue
            if past.jobs:  # an answer holds no more jobs than fit into a frame; the history knows the others
                model.adopt(past.jobs.values())
                past.jobs = {}
            model.fold(event)
            yield model


async def _present(client: AsyncClient) -> PoolModel:
    welcome = await client.ask(wire.Hello(version=wire.VERSION))
    jobs, hosts = await client.ask(wire.ListJobs(limit=3_000)), await client.ask(wire.ListHosts())
    shelf = await client.ask(wire.ListPolicies())
    assert isinstance(welcome, wire.Welcome)
    assert isinstance(jobs, wire.Jobs)
    assert isinstance(hosts, wire.Hosts)
    assert isinstance(shelf, wire.Policies)
    active = next((policy for policy in shelf.policies if policy.active), None)
    return PoolModel(
        seq=min(jobs.seq, hosts.seq),
        jobs=jobs.jobs,
        slots=hosts.slots,
        policy=active.name if active else welcome.policy,
        policy_options=active.options if active else {},
        kind=hosts.kind,
        user=welcome.user,
    )


def _beginning(model: PoolModel) -> PoolModel:
    """A model to fold the history into: the same slots, empty; jobs are told by the events themselves."""
    since = max(0, model.seq - HISTORY_EVENTS)
    slots = [SlotInfo(slot=slot.slot, state="free", device=slot.device) for slot in model.slots.values()]
    return PoolModel(seq=since, slots=slots, kind=model.kind)
