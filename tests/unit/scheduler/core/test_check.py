"""An invariant that is broken on purpose is found, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_elastic.scheduler.core import State
from jupyter_elastic.types import Cancel
from tests.support.harness import Harness, host
from tests.support.invariants import InvariantBroken, check


@pytest.fixture
def state() -> State:
    """Jobs: 1 runs on a:0, a:1 and drains a:2; 2 is queued; 3 has ended; 4 is stopping on a:3."""
    pool = Harness(host("a", 4), host("b", 2))
    pool.running(3, 1, 4)
    pool.submit(2, 2)
    pool.step(Cancel, job=pool.submit())
    pool.running(1)
    pool.plan({1: 2, 4: 1})
    pool.settle(1)
    pool.step(Cancel, job=4)
    check(pool.core.state)
    return pool.core.state


def _lease_twice(state: State) -> None:
    state.jobs[2].phase = "starting"
    state.jobs[2].attempt = state.jobs[2].generation = 1
    state.jobs[2].started_at = 1.0
    state.jobs[2].slots = ("a:0", "b:0")
    state.active.add(2)


def _end_in_place(state: State) -> None:
    state.jobs[2].phase = "failed"
    state.active.add(2)


def _take_all(state: State) -> None:
    state.jobs[1].slots = state.jobs[1].members = ()


def _keep_a_lost_slot(state: State) -> None:
    state.hosts = state.hosts[:1]
    del state.slots["b:1"]
    state.slots["b:0"].gone = True


BREAKS: dict[str, Callable[[State], object]] = {
    "leased twice": _lease_twice,
    "kept with the unfinished ones": _end_in_place,
    "kept with the ended ones but queued": lambda s: setattr(s.ended[3], "phase", "queued"),
    "has ended and still holds": lambda s: setattr(s.ended[3], "slots", ("b:0",)),
    "has ended but not when": lambda s: setattr(s.ended[3], "ended_at", None),
    "both ended and not": lambda s: s.ended.update({2: s.jobs[2]}),
    "not in order": lambda s: setattr(s, "jobs", dict(reversed(s.jobs.items()))),
    "active jobs": lambda s: s.active.discard(1),
    "submit key": lambda s: s.keys.clear(),
    "used already": lambda s: setattr(s, "next_job", 2),
    "does not exist": lambda s: s.reasons.update({99: "why"}),
    "negative number": lambda s: setattr(s, "rejections", -1),
    "holds a slot twice": lambda s: setattr(s.jobs[1], "draining", ("a:0",)),
    "that it does not hold": lambda s: setattr(s.jobs[1], "members", ("b:1",)),
    "job 2 (queued) holds": lambda s: setattr(s.jobs[2], "slots", ("b:0",)),
    "no attempt or generation": lambda s: setattr(s.jobs[1], "attempt", 0),
    "never started": lambda s: setattr(s.jobs[1], "started_at", None),
    "leases or no reason": lambda s: setattr(s.jobs[4], "stop", ""),
    "runs on nothing": _take_all,
    "servers of": lambda s: setattr(s.jobs[1], "servers", 2),
    "is being stopped": lambda s: setattr(s.jobs[1], "stop", "cancel"),
    "has not settled": lambda s: setattr(s.jobs[1], "settled", 1),
    "nothing to settle": lambda s: setattr(s.jobs[1], "phase", "rescaling"),
    "has settled": lambda s: setattr(s.jobs[1], "phase", "starting"),
    "has counted": lambda s: setattr(s.jobs[1], "run_s", float("nan")),
    "has no entry": lambda s: s.slots.pop("b:1"),
    "says job 1": lambda s: setattr(s.slots["b:0"], "job", 1),
    "says job None": lambda s: setattr(s.slots["a:0"], "job", None),
    "drains in one entry": lambda s: setattr(s.slots["a:2"], "draining", False),
    "gone in one entry": lambda s: setattr(s.slots["a:2"], "gone", True),
    "is gone and not given up": _keep_a_lost_slot,
    "is out": lambda s: setattr(s.slots["a:0"], "out", "used by pid 7"),
    "free but granted": lambda s: setattr(s.slots["b:0"], "granted", 2),
}


@pytest.mark.parametrize("word", BREAKS)
def test_what_is_broken_is_found(state: State, word: str) -> None:
    BREAKS[word](state)
    with pytest.raises(InvariantBroken) as found:
        check(state)
    assert word in str(found.value)
