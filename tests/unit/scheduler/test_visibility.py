"""What others see of a job: over all kinds of events and records, so that a field that is added is hidden until named.

Each record is filled with marks; what another user gets to see of it may hold only the marks of the fields that the
rule names.
"""

from __future__ import annotations

import typing
from collections.abc import Generator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import Struct, UnsetType

from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.access.visibility import Visibility
from jupyter_elastic.types import AnyEventData, Event, Host, HostsChanged, JobInfo, JobSubmitted, JobView, View
from tests.unit.scheduler.policies.pool import job as job_view
from tests.unit.scheduler.policies.pool import linear, view

RIGHTS = Rights(owner="pool", admins=["ada"])
EVENTS = get_args(AnyEventData)
SEEN_FIELDS = {
    "job", "owner", "spec", "spec.name", "spec.group", "phase", "slots", "draining", "elastic", "reason",
    "spec.interactive",
    "submitted_at", "started_at", "ended_at", "attempt", "generation", "preemptions", "servers", "how", "cause",
    "outcome", "by", "jobs", "hosts", "name", "options", "previous", "policy", "reasons", "user", "connected", "size",
    "next_job", "target", "drained", "drains", "group", "estimate_s", "queued_at", "changed_at", "attained_s", "run_s",
    *(prefix + name for prefix in ("", "spec.")
      for name in ("min_slots", "max_slots", "sizes", "min_servers", "max_servers", "priority", "preemptible")),
}  # fmt: skip
"""Whose, name, state, slots, the policy's reason. A field beside these is seen by the owner and administrators."""


def _filled(hint: Any, mark: str) -> Any:
    """A value of this type that can be told from its default; texts hold the mark."""
    hint = hint.__value__ if hasattr(hint, "__value__") else hint
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return _filled(arguments[0], mark)
    if origin is Literal:
        return arguments[-1]
    if origin is tuple:
        return (_filled(arguments[0], mark),)
    if origin is dict:
        return {_filled(arguments[0], mark): _filled(arguments[1], mark)}
    if arguments:  # a union
        return _filled(next(one for one in arguments if one not in (type(None), UnsetType)), mark)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return record(hint, mark + ".")
    return {str: f"mark {mark}", int: 77, float: 77.5, bool: True, Any: f"mark {mark}"}[hint]


def record(kind: type[Struct], prefix: str = "") -> Any:
    """A record of this kind whose every field is set."""
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: _filled(hints[name], prefix + name) for name in kind.__struct_fields__})


def whole(parts: Generator[None, None, View]) -> View:
    """What comes of it after the last part."""
    while True:
        try:
            next(parts)
        except StopIteration as done:
            return done.value


def test_the_marks_are_not_defaults() -> None:
    full = record(JobInfo)
    assert full.spec.folder == "mark spec.folder"
    assert full.progress.metrics == {"mark progress.metrics": 77.5}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(full), type=JobInfo) == full


def _changed(seen: Any, kind: type[Struct], prefix: str = "") -> set[str]:
    """The fields of what is seen that are still those of the filled record."""
    found = set()
    full = record(kind, prefix)
    for name in kind.__struct_fields__:
        value = getattr(seen, name)
        if isinstance(value, Struct) and value != getattr(full, name):
            found |= _changed(value, type(value), f"{prefix}{name}.")
        elif value == getattr(full, name):
            found.add(prefix + name)
    return found


@pytest.mark.parametrize("kind", [*EVENTS, JobInfo, JobView])
def test_of_what_is_anothers_no_field_is_seen_but_those_that_are_named(kind: type[Struct]) -> None:
    visibility = Visibility(RIGHTS)
    full = record(kind)
    if kind in EVENTS:
        event = Event(seq=1, at=1.0, by="bob", cause="mark cause", data=full)
        assert visibility.event("ada", event, "bob") is event
        owner = getattr(full, "owner", None) or getattr(full, "user", "bob")
        assert visibility.event(owner, event, owner) is event
        found = visibility.event("eve", event, "bob")
        if found is None:
            return
        assert found.cause == ""
        seen = found.data
    else:
        assert visibility.job("ada", full) is full
        assert visibility.job(full.owner, full) is full
        seen = visibility.job("eve", full, policys_reason=lambda _job: "mark reason")
    assert _changed(seen, kind) <= SEEN_FIELDS
    assert "mark spec.folder" not in repr(seen)
    assert "memo" not in repr(seen).replace("memo=None", "")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(seen), type=kind) == seen, "a client can read it"


def test_progress_and_deaths_are_not_seen_at_all() -> None:
    visibility = Visibility(RIGHTS)
    hidden = {
        kind.__name__
        for kind in EVENTS
        if visibility.event("eve", Event(seq=1, at=1.0, by="bob", cause="c", data=record(kind)), "bob") is None
    }
    assert hidden == {
        "AsksRefused", "JobProgressed", "WorkerDied", "WorkerReplaced", "SharesChanged", "KeyRegistered", "KeyRevoked",
        "HoldEnded", "UnpinRequested",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "field", "policys"), [("StopRequested", "how", "preempt"), ("JobRequeued", "cause", "preempted")]
)
def test_a_reason_is_seen_where_it_is_the_policys(kind: str, field: str, policys: str) -> None:
    visibility = Visibility(RIGHTS)
    made = next(one for one in EVENTS if one.__name__ == kind)
    for cause in get_args(get_type_hints(made)[field]):
        data = msgspec.structs.replace(record(made), **{field: cause, "reason": "ValueError: my secret"})
        seen = visibility.event("eve", Event(seq=1, at=1.0, by="bob", cause="c", data=data), "bob")
        assert seen is not None
        assert seen.data.reason == ("ValueError: my secret" if cause == policys else "")


def test_an_end_says_how_and_not_why() -> None:
    made = next(one for one in EVENTS if one.__name__ == "JobEnded")
    data = made(job=1, outcome="failed", reason="rank 0: ValueError: my secret")
    event = Event(seq=1, at=1.0, by="bob", cause="c", data=data)
    seen = Visibility(RIGHTS).event("eve", event, None)
    assert seen is not None
    assert (seen.data.outcome, seen.data.reason) == ("failed", "")


@pytest.mark.parametrize("kind", [JobInfo, JobView])
def test_what_others_see_is_made_anew_when_the_job_or_the_policys_word_changes(kind: Any) -> None:
    visibility, full = Visibility(RIGHTS), record(kind)
    seen = visibility.job("eve", full)
    assert visibility.job("bob", full) is seen
    assert visibility.job(full.owner, full) is full
    moved = msgspec.structs.replace(full, preemptions=full.preemptions + 1)
    assert visibility.job("eve", moved).preemptions == moved.preemptions
    if kind is JobInfo:
        assert visibility.job("eve", moved, lambda _job: "waits").reason == "waits"


def test_names_may_be_hidden() -> None:
    visibility = Visibility(RIGHTS, hide_names=True)
    full = record(JobInfo)
    assert visibility.job("eve", full).spec.name == "job 77"
    assert visibility.job(full.owner, full).spec.name == "mark spec.name"
    submitted = Event(seq=1, at=1.0, by="bob", cause="k", data=record(JobSubmitted))
    seen = visibility.event("eve", submitted, None)
    assert seen is not None
    assert seen.data.spec.name == "job 77"


def test_a_view_shows_how_long_others_jobs_will_take_and_not_how_they_train() -> None:
    theirs = job_view(1, 1, 4, on=2, owner="bob", name="secret", profile=linear(200.0), deadline_at=9.0)
    mine = job_view(2, 1, owner="eve", profile=linear(50.0))
    seen = whole(Visibility(RIGHTS, hide_names=True).view("eve", view(4, theirs, mine, memo={"a": 1})))
    other, own = seen.jobs
    assert own == mine
    assert (other.size, other.min_slots, other.max_slots, other.name) == (theirs.size, 1, 4, "job 1")
    assert (other.profile.speeds, other.profile.remaining, other.deadline_at, seen.memo) == ((), None, None, None)
    assert other.estimate_s == 200.0 + theirs.attained_s
    assert whole(Visibility(RIGHTS).view("ada", view(4, theirs))).jobs == (theirs,)


def test_why_somebody_can_not_reach_a_host_is_his_and_the_administrators() -> None:
    closed = Host(name="lab2", kind="cpu", slots=(), unreachable={"ann": "no key /home/ann", "bob": "no route"})
    event = Event(seq=1, at=1.0, by="pool", cause="", data=HostsChanged(hosts=(closed,)))
    visibility = Visibility(RIGHTS)

    def seen(user: str) -> dict[str, str]:
        found = visibility.event(user, event, None)
        assert found is not None
        return found.data.hosts[0].unreachable

    assert seen("ada") == closed.unreachable
    assert seen("bob") == {"bob": "no route"}
    assert seen("eve") == {}
