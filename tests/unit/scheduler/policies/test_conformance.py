"""The public conformance suite catches policies that break their promises."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import pytest

from jupyter_elastic.scheduler.policies.fifo import Fifo
from jupyter_elastic.testing.policies import PolicyBroken, check_policy
from jupyter_elastic.types import Plan, Size


class Base(Fifo):
    name: ClassVar[str] = "mine"


class TooMany(Base):
    def plan(self, view):
        return Plan(
            sizes={job.job: Size(job.min_slots, job.min_servers) for job in view.jobs if job.phase != "stopping"}
        )


class Forgetful(Base):
    count = 0

    def plan(self, view):
        Forgetful.count += 1
        return super().plan(view) if Forgetful.count % 2 else Plan(sizes={})


class Boastful(Base):
    work_conserving = True


class Lazy(Base):
    def plan(self, view):
        return Plan(sizes={job.job: job.size for job in view.jobs if job.size.workers})


class Unfair(Base):
    def plan(self, view):
        return super().plan(msgspec.structs.replace(view, jobs=tuple(reversed(view.jobs))))


class Chatty(Base):
    def plan(self, view):
        return msgspec.structs.replace(super().plan(view), memo="x" * 70_000)


class Mute(Base):
    class Options(msgspec.Struct):
        knob: Annotated[int, msgspec.Meta(ge=0)] = 1


def test_a_good_policy_passes():
    check_policy(Fifo)
    check_policy(Fifo(Fifo.Options(backfill="easy")), rounds=10)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (TooMany, "illegal plan"),
        (Forgetful, "two answers"),
        (Boastful, "work conserving"),
        (Lazy, "haven't ended"),
        (Unfair, "starved"),
        (Chatty, "memo"),
        (Mute, "description"),
    ],
)
def test_a_broken_policy_is_found_out(kind, what):
    with pytest.raises(PolicyBroken, match=what):
        check_policy(kind, bound_s=10_000.0)
