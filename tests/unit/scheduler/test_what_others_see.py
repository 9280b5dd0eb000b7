"""Every text that the daemon sends, and who may read it: a new field fails here until it is on the list.

A record is filled with marks that say where they stand. What another user sees of it holds the marks that the list
names, no more and no less. Then a pool in which everything private has been said once: nothing of it is in any answer.
"""

from __future__ import annotations

import typing
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any, cast, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import Struct

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler import requests
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.access.visibility import Visibility
from jupyter_elastic.scheduler.journal.state_store import Context, StateStore
from jupyter_elastic.scheduler.net.peers import Peer
from jupyter_elastic.types import (
    AnyEventData,
    Cancel,
    DeathReported,
    DrainSlots,
    Event,
    ExitReported,
    HostsReported,
    JobInfo,
    JobView,
    Progress,
    ProgressReported,
    Submit,
    View,
)
from tests.support.harness import Harness, host, job_spec
from tests.unit.scheduler.test_visibility import record

RIGHTS = Rights(owner="pool", admins=["ada"])
WHOSE = {"owner", "spec.name", "spec.group"}
"""Of a job: whose it is, its name and its group."""
WHERE = {"slots", "draining"}
DRAINED = {"drains.target", "drains.reason", "drains.by"}
SEEN = {
    "JobSubmitted": WHOSE,
    "JobStarted": {"slots", "reason"},
    "RescaleRequested": {"slots", "reason"},
    "JobRunning": {"slots"},
    "StopRequested": {"reason"},
    "SlotsReleased": {"slots"},
    "JobRequeued": {"reason"},
    "JobResized": {"by"},
    "JobEnded": set(),
    "JobsForgotten": set(),
    "HostsChanged": {
        "hosts.name", "hosts.labels", "hosts.url", "hosts.slots.device", "hosts.slots.out",
        "hosts.slots.processes.user", "hosts.slots.processes.name",
    },
    "DrainsChanged": {"target", *DRAINED},
    "PolicyUsed": {"name", "options", "previous", "reason"},
    "PlanRejected": {"policy", "reason"},
    "PlanAccepted": {"policy", "reasons"},
    "AgentChanged": {"user"},
    "JobInfo": {*WHOSE, *WHERE},
    "JobView": {"owner", "name", "group"},
}  # fmt: skip
"""By event and screen, the texts that everybody may read. A reason there is the policy's or an administrator's."""
ANSWERS = {
    # what is everybody's
    "Welcome": {"package", "pool", "policy"},
    "Hosts": {
        "slots.slot", "slots.owner", "slots.device", "slots.reason", "slots.foreign.user", "slots.foreign.name",
        "slots.drained", "kind", *DRAINED, "others.name", "others.url",
    },
    "Policies": {"policies.name", "policies.summary", "policies.options", "policies.schema"},
    "PoolView": {"policy", "options"},
    "Problem": {"text"},
    # what is made for who asks: of his own, as an administrator, or by the rules of `SEEN`
    "asker's": {
        "Welcome.user", "Hosts.slots.pinned", "Hosts.others.unreachable", "Policies.refusal", "PoolView.view",
        "Jobs.jobs", "Explanation.text", "Explanation.until", "Used.rows.day", "Used.rows.user", "Used.rows.group",
        "Audited.rows.by", "Audited.rows.user", "Audited.rows.what", "Audited.rows.reason", "Past.events",
        "Metrics.families.name", "Metrics.families.text", "Metrics.families.labels", "Metrics.families.samples.labels",
        "Metrics.families.samples.buckets", "Metrics.problem", "KeyAdmitted.user", "KeyAdmitted.endpoint",
        "KeyAdmitted.server_key", "Refused.code", "Refused.message",
    },
}  # fmt: skip
"""All texts of all answers."""


def marked(value: Any) -> Iterator[str]:
    """All marks in a value."""
    if isinstance(value, str):
        if value.startswith("mark "):
            yield value.removeprefix("mark ")
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            yield from marked(getattr(value, name))
    elif isinstance(value, dict):
        yield from marked([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from marked(one)


@pytest.mark.parametrize("kind", [*get_args(AnyEventData), JobInfo, JobView], ids=lambda kind: kind.__name__)
def test_of_events_and_screens_others_read_the_texts_on_the_list(kind: type[Struct]) -> None:
    visibility, full = Visibility(RIGHTS), record(kind)
    if kind in (JobInfo, JobView):
        seen = visibility.job("eve", full)
    else:
        policys = {"StopRequested": {"how": "preempt"}, "JobRequeued": {"cause": "preempted"}}.get(kind.__name__, {})
        data = msgspec.structs.replace(full, **policys)
        event = Event(seq=1, at=1.0, by="bob", cause="mark cause", data=data)
        seen = visibility.event("eve", event, "bob")
    assert set(marked(seen)) == SEEN.get(kind.__name__, set())


def texts(hint: Any, path: str) -> Iterator[str]:
    """Where texts stand in values of this type; a view, jobs and events have their own list."""
    hint = hint.__value__ if hasattr(hint, "__value__") else hint
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        yield from texts(arguments[0], path)
    elif origin is typing.Literal:
        return
    elif arguments:
        for one in arguments:
            yield from texts(one, path)
    elif hint in (str, Any, View, JobInfo, Event):
        yield path
    elif isinstance(hint, type) and issubclass(hint, Struct):
        for name, field in get_type_hints(hint, include_extras=True).items():
            if name in hint.__struct_fields__:
                yield from texts(field, f"{path}.{name}")


def test_every_text_of_every_answer_is_on_the_list() -> None:
    found = {path for kind in get_args(wire.AnyAnswer) for path in texts(kind, kind.__name__)}
    named = {f"{kind}.{path}" for kind, paths in ANSWERS.items() if kind != "asker's" for path in paths}
    assert found == named | ANSWERS["asker's"]


# --- a pool in which everything private was said ----------------------------------------------------------------------

SECRET = "s3cret"
SSH = f"no host agent answers on host h1: bob@10.91.7.11 ({SECRET}): Permission denied (publickey)."
PRIVATE = {
    "folder": f"/home/bob/{SECRET}", "python": f"/home/bob/{SECRET}/python", "notebook": f"{SECRET}.ipynb",
    "cell": SECRET, "engine": f"engine-{SECRET}", "engine_reason": SECRET,
}  # fmt: skip


class Pool(Harness):
    """Bob's jobs, and what others are answered."""

    def __init__(self) -> None:
        self.near = host("lab", 2)
        self.far = host("h1", 2, url="ssh://h1", local_users=True, labels={SECRET: "yes"})
        super().__init__(self.near, msgspec.structs.replace(self.far, labels={}))

    def submits(self, least: int, most: int, **spec: Any) -> int:
        self.step(
            Submit, by="bob", uid=1000, key=f"key-{SECRET}-{self.now}", spec=job_spec(least, most, **PRIVATE, **spec)
        )
        return self.core.state.next_job - 1

    def h1_fails(self) -> None:
        hosts = (self.near, msgspec.structs.replace(self.far, labels={}, unreachable={"bob": SSH}))
        self.step(HostsReported, by="pool", hosts=hosts)

    def answers(self, user: str) -> list[Any]:
        """What this user is told of all that happened, and of all that is."""
        visibility = Visibility(RIGHTS)
        store = SimpleNamespace(core=self.core, now=lambda: self.now)
        parts = {StateStore: store, Rights: RIGHTS, Visibility: visibility}
        context = Context(Peer(cast("Any", None), b"1", user), 1)
        asks: list[wire.Ask] = [wire.ListJobs(all=True), wire.ListHosts(), wire.ReadView(), wire.ListPolicies()]
        asks += [wire.ExplainJob(job=job) for job in range(1, self.core.state.next_job)]
        found = [self.whole(requests.answer(ask, context, parts)) for ask in asks]
        owner = self.core.state.owner_of
        told = ((event, getattr(event.data, "job", None)) for event in self.events)
        return [*found, *(visibility.event(user, one, None if job is None else owner(job)) for one, job in told)]

    @staticmethod
    def whole(answer: Any) -> Any:
        if not isinstance(answer, Generator):
            return answer
        while True:
            try:
                next(answer)
            except StopIteration as done:
                return done.value


def lost_while_it_starts(pool: Pool) -> None:
    job = pool.submits(4, 4)
    pool.plan({job: 4})
    pool.h1_fails()


def lost_while_it_is_elastic(pool: Pool) -> None:
    job = pool.submits(1, 4)
    pool.plan({job: 4})
    pool.settle(job)
    pool.h1_fails()
    assert pool.core.state.jobs[job].phase == "rescaling"
    pool.settle(job)


def lost_and_queued_again(pool: Pool) -> None:
    lost_while_it_starts(pool)
    pool.step(ExitReported, by="bob", job=1, attempt=1, outcome="lost", reason=SECRET)
    assert pool.core.state.jobs[1].phase == "queued"


def kept_by_a_session(pool: Pool) -> None:
    job = pool.submits(2, 2, session=SECRET)
    pool.plan({job: 2})
    pool.settle(job)
    pins = {"pinned": pool.job(job).slots, "pinned_why": f"a tensor of {SECRET}", "pinned_s": 60.0}
    pool.step(ExitReported, by="bob", job=job, attempt=1, outcome="completed", reason=SECRET, **pins)
    assert pool.core.state.retaining
    pool.submits(3, 3, session=SECRET)


def a_session_that_runs_and_one_that_waits(pool: Pool) -> None:
    job = pool.submits(1, 2, session=SECRET, host="lab", prefers=(SECRET,))
    pool.plan({job: 1})
    pool.settle(job)
    pool.submits(1, 1, session=SECRET)


def waits_for_a_label(pool: Pool) -> None:
    pool.near = msgspec.structs.replace(pool.near, labels={"rack": SECRET})
    pool.h1_fails()
    pool.submits(2, 2, on={"rack": SECRET})
    pool.submits(2, 2, on={"rack": SECRET})


def fails(pool: Pool) -> None:
    job = pool.submits(1, 2, deadline_at=1e6, max_time_s=5000.0)
    pool.plan({job: 2})
    pool.settle(job)
    pool.step(ProgressReported, by="bob", job=job, attempt=1, progress=Progress(step=1, metrics={SECRET: 1.0}))
    slot = pool.job(job).slots[0]
    pool.step(DeathReported, by="bob", job=job, attempt=1, count=1, rank=0, slot=slot, cause=SECRET, generation=1,
              empty=(slot,))  # fmt: skip
    pool.step(DrainSlots, by="ada", target="lab", reason="the fan")
    pool.step(Cancel, by="bob", job=job, reason=SECRET)


@pytest.mark.parametrize(
    "story",
    [lost_while_it_starts, lost_while_it_is_elastic, lost_and_queued_again, kept_by_a_session,
     a_session_that_runs_and_one_that_waits, waits_for_a_label, fails],
)  # fmt: skip
def test_nothing_that_is_an_owners_alone_is_in_any_answer_to_another(story: Any) -> None:
    pool = Pool()
    story(pool)
    own = pool.answers("bob")
    assert SECRET in repr(own)
    told = [one for one in pool.answers("eve") if SECRET in repr(one) and not _administrators(one)]
    assert told == []


def _administrators(told: Any) -> bool:
    """What an administrator has said of the pool himself: labels of hosts."""
    return type(getattr(told, "data", None)).__name__ == "HostsChanged" and SSH not in repr(told)


def test_others_read_which_slots_were_lost_and_the_owner_reads_why() -> None:
    for story in (lost_while_it_starts, lost_while_it_is_elastic, lost_and_queued_again):
        pool = Pool()
        story(pool)
        eve, bob = repr(pool.answers("eve")), repr(pool.answers("bob"))
        assert "host lost: h1:0, h1:1" in eve
        assert "publickey" not in eve
        assert f"host lost: h1:0, h1:1 ({SSH})" in bob
        assert f"host lost: h1:0, h1:1 ({SSH})" in repr(pool.answers("ada"))
