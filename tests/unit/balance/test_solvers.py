"""Plans that move samples: the best against all there are, the others against the best, and what can't be planned."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from jupyter_elastic.balance import SOLVERS, DataHost, Instance, linear, measure, solve
from jupyter_elastic.balance.generate import generate
from jupyter_elastic.balance.simulate import simulate
from jupyter_elastic.balance.transfer_plan import When, fits
from jupyter_elastic.types.errors import BadRequest

pytest.importorskip("scipy")
WHEN: tuple[When, ...] = ("before", "overlapped")


def instance(samples: list[int], speeds: list[float], link: float | list[list[float]] = 100.0, **more: Any) -> Instance:
    """Hosts a, b, c …; `storage`, `pinned` and `keep` by host."""
    by_host = {name: more.pop(name) for name in ("storage", "pinned", "keep") if name in more}
    if "pinned" in by_host:
        by_host["pinned"] = [min(pinned, n) for pinned, n in zip(by_host["pinned"], samples, strict=True)]
    hosts = tuple(
        DataHost(name=chr(97 + at), samples=n, speed=speed, **{name: values[at] for name, values in by_host.items()})
        for at, (n, speed) in enumerate(zip(samples, speeds, strict=True))
    )
    links = [[link] * len(hosts)] * len(hosts) if isinstance(link, float) else link
    given = {"sample_bytes": 100.0, "epochs": 5, **more}
    return Instance(hosts=hosts, bandwidth=tuple(map(tuple, links)), **given)


def best_of_all(one: Instance, when: When) -> float:
    """The least total time of all plans there are."""
    pairs = list(itertools.permutations(range(len(one.hosts)), 2))
    ranges = [range(one.movable(i) + 1 if one.bandwidth[i][j] else 1) for i, j in pairs]
    plans = (dict(zip(pairs, chosen, strict=True)) for chosen in itertools.product(*ranges))
    plans = ({pair: n for pair, n in plan.items() if n} for plan in plans)
    return min(measure(one, plan, when).total_s for plan in plans if fits(one, plan))


tiny = some.builds(
    instance,
    some.lists(some.integers(0, 4), min_size=3, max_size=3),
    some.lists(some.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=3, max_size=3),
    some.lists(
        some.lists(some.sampled_from([0.0, 50.0, 100.0, 400.0]), min_size=3, max_size=3), min_size=3, max_size=3
    ),
    epochs=some.integers(1, 6),
    storage=some.lists(some.sampled_from([4, 6, None]), min_size=3, max_size=3),
    keep=some.lists(some.sampled_from([0.0, 0.5]), min_size=3, max_size=3),
    pinned=some.lists(some.sampled_from([0, 0, 1]), min_size=3, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(tiny, some.sampled_from(WHEN))
def test_the_exact_plan_is_the_best_of_all(one: Instance, when: When) -> None:
    best = best_of_all(one, when)
    assert solve(one, "ilp", when=when).total_s <= best * (1 + 2 * linear.GAP) + 1e-9


def test_whole_samples_may_be_better_than_rounded_fractions() -> None:
    one = instance([3, 0], [1.0, 1.0], 1e6, epochs=1)
    assert solve(one, "ilp").total_s == pytest.approx(2.0, abs=1e-3)
    assert solve(one, "lp").total_s == pytest.approx(2.0, abs=1e-3)


large = some.builds(
    instance,
    some.lists(some.integers(0, 5000), min_size=6, max_size=6),
    some.lists(
        some.one_of(
            some.floats(0.0, 500.0).map(lambda speed: 0.0 if speed < 20 else speed), some.sampled_from([0.01, 1e6])
        ),
        min_size=6,
        max_size=6,
    ),
    some.lists(some.lists(some.sampled_from([0.0, 1e3, 1e4, 1e5]), min_size=6, max_size=6), min_size=6, max_size=6),
    epochs=some.integers(1, 30),
    sample_bytes=some.sampled_from([0.0, 1.0, 100.0]),
    storage=some.lists(some.sampled_from([5000, 6000, None]), min_size=6, max_size=6),
    keep=some.lists(some.sampled_from([0.0, 0.0, 0.3, 1.0]), min_size=6, max_size=6),
    pinned=some.lists(some.sampled_from([0, 0, 1000]), min_size=6, max_size=6),
)


@settings(max_examples=60, deadline=None)
@given(large, some.sampled_from(SOLVERS), some.sampled_from(WHEN))
def test_a_plan_can_be_carried_out_and_is_never_slower_than_no_transfer(one: Instance, solver: str, when: When) -> None:
    try:
        plan = solve(one, solver, when=when)
    except BadRequest as refusal:
        assert "`speed` 0" in str(refusal)  # noqa: PT017
        assert any(host.samples and not host.speed for host in one.hosts)
        return
    index = {host.name: at for at, host in enumerate(one.hosts)}
    amounts = {(index[move.sender], index[move.receiver]): move.samples for move in plan.moves}
    assert fits(one, amounts)
    assert all(move.samples > 0 for move in plan.moves)
    assert plan.total_s <= plan.without_s
    assert plan.total_s == measure(one, amounts, when).total_s
    seen = simulate(one, plan, when=when, steps=4)
    assert seen.epoch_s == pytest.approx(plan.epoch_s)
    assert plan.total_s * (1 - 1e-6) <= seen.total_s <= plan.total_s + 2 * plan.transfer_s
    if plan.without_s > plan.total_s:
        assert plan.moves


@pytest.mark.parametrize(("kind", "off"), [("skewed", 0.05), ("mild", 0.05), ("slow", 0.10)])
def test_the_greedy_plan_is_near_the_best(kind: Any, off: float) -> None:
    for seed in range(4):
        one = generate(kind, 10, seed)
        assert solve(one, "greedy").total_s <= (1 + off) * solve(one, "ilp").total_s, seed


@pytest.mark.parametrize("when", WHEN)
def test_a_very_slow_host_keeps_no_sample_too_many(when: When) -> None:
    """A sample takes the slow host a minute, and the others a millisecond."""
    one = instance([6618, 0, 6, 0], [0.0178, 182.8, 691.5, 831.1], 1e6, epochs=2)
    best = solve(one, "ilp", when=when).total_s
    for solver in ("greedy", "lp", "auto"):
        assert solve(one, solver, when=when).total_s <= 1.05 * best, solver


def test_rounded_fractions_keep_to_the_storage() -> None:
    """c is full: what it takes in it must pass on, in whole samples too."""
    one = instance(
        [7843, 500, 100, 0], [0.0, 20.0, 30.0, 70.0],
        [[0.0, 0.0, 3e3, 0.0], [0.0, 0.0, 7e3, 1e2], [1e3, 2e3, 0.0, 9e3], [0.0, 0.0, 0.0, 0.0]],
        epochs=7, storage=[None, 600, 100, None],
    )  # fmt: skip
    for fraction in (0.3, 0.5, 0.7):
        found = {(1, 2): 40 + fraction, (2, 3): 39.9 + fraction, (0, 2): 0.4}
        rounded = linear._rounded(one, found, "before")
        assert fits(one, rounded), (fraction, rounded)


def test_a_single_epoch_that_never_ends_without_transfer() -> None:
    one = instance([10, 0], [0.0, 1.0], 1e3, epochs=1)
    for when in WHEN:
        plan = solve(one, "auto", when=when)
        assert (plan.total_s, plan.without_s) == (11.0 if when == "before" else 10.0, math.inf)
    with pytest.raises(BadRequest, match="with the solver `none` they stay"):
        solve(one, "none")


def test_many_hosts_take_seconds_and_gain() -> None:
    one = generate("skewed", 250, 0)
    plan = solve(one, "auto")
    assert plan.solver == "greedy"
    assert plan.total_s < plan.without_s / 2.5


def test_skewed_data_trains_two_and_a_half_times_as_fast_on_the_average() -> None:
    plans = [solve(generate("skewed", 10, seed), "ilp") for seed in range(20)]
    assert sum(plan.without_s / plan.total_s for plan in plans) / len(plans) >= 2.5


def test_two_quick_links_by_way_of_a_host_with_samples_of_its_own_beat_a_slow_one() -> None:
    """b takes samples of a and gives c as many of its own: nothing is relayed."""
    links = [[0.0, 1e4, 1.0], [1e4, 0.0, 1e4], [1.0, 1e4, 0.0]]
    one = instance([1000, 500, 0], [10.0, 10.0, 10.0], links, storage=[None, 500, None])  # b is full
    for solver in ("greedy", "ilp"):
        plan = solve(one, solver)
        sent = {(move.sender, move.receiver): move.samples for move in plan.moves}
        assert sent["a", "b"] == sent["b", "c"] == 500, solver
        assert ("a", "c") not in sent


def test_nothing_moves_where_that_is_best() -> None:
    slow = instance([100, 0], [10.0, 10.0], 1.0, epochs=1)
    for solver in SOLVERS:
        plan = solve(slow, solver)
        assert plan.moves == ()
        assert plan.total_s == plan.without_s == 10.0


def test_a_transfer_during_the_first_epoch_costs_only_what_exceeds_it() -> None:
    one = instance([200, 0], [10.0, 10.0], 1000.0, epochs=2)
    before, overlapped = solve(one, "ilp"), solve(one, "ilp", when="overlapped")
    assert before.total_s == pytest.approx(2 * 10 + 10)
    assert overlapped.total_s == pytest.approx(2 * 10)


def test_shared_data_moves_freely() -> None:
    """`sample_bytes` 0: only who trains on what is decided, by speed."""
    one = instance([300, 0, 0], [10.0, 20.0, 30.0], sample_bytes=0.0)
    for solver in ("greedy", "ilp", "lp", "auto"):
        plan = solve(one, solver)
        assert plan.transfer_s == 0.0
        assert plan.epoch_s == pytest.approx(5.0, rel=0.03), solver


@pytest.mark.parametrize("solver", ["greedy", "ilp", "lp", "auto"])
def test_what_must_stay_stays_and_what_has_no_room_goes_elsewhere(solver: str) -> None:
    pinned = solve(instance([1000, 0], [10.0, 10.0], 1e6, pinned=[900, 0]), solver)
    assert sum(move.samples for move in pinned.moves) == 100
    kept = solve(instance([1000, 0], [10.0, 10.0], 1e6, keep=[0.8, 0]), solver)
    assert sum(move.samples for move in kept.moves) == 200
    assert solve(instance([1000, 0], [10.0, 10.0], 1e6, keep=[1.0, 0]), solver).moves == ()
    all_pinned = solve(instance([1000, 0], [10.0, 10.0], 1e6, pinned=[1000, 0]), solver)
    assert (all_pinned.moves, all_pinned.total_s) == ((), all_pinned.without_s)
    assert "no sample may leave a" in all_pinned.why
    small = solve(instance([1000, 0, 0], [10.0, 10.0, 10.0], 1e6, storage=[None, 50, None]), solver)
    got = {name: sum(move.samples for move in small.moves if move.receiver == name) for name in "bc"}
    assert got["b"] <= 50 < got["c"]
    one_way = solve(instance([1000, 0, 0], [10.0, 10.0, 10.0], [[0, 0, 1e6], [1e6, 0, 0], [0, 0, 0]]), solver)
    assert {(move.sender, move.receiver) for move in one_way.moves} == {("a", "c")}


@pytest.mark.parametrize("solver", ["greedy", "ilp", "lp", "auto"])
def test_a_host_that_only_stores_is_emptied_to_the_last_sample(solver: str) -> None:
    plan = solve(instance([997, 10, 10], [0.0, 7.0, 3.0], 1e5), solver)
    assert sum(move.samples for move in plan.moves if move.sender == "a") == 997
    assert math.isinf(plan.without_s)
    assert math.isfinite(plan.total_s)


@pytest.mark.parametrize("solver", SOLVERS)
def test_one_host_no_samples_and_an_empty_host(solver: str) -> None:
    assert solve(instance([10], [1.0]), solver).moves == ()
    assert solve(instance([0, 0], [1.0, 0.0]), solver).total_s == 0.0
    assert solve(instance([10, 10], [1.0, 1.0]), solver).moves == ()


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (instance([10, 0], [0.0, 1.0], pinned=[3, 0]), "3 of its samples must stay"),
        (instance([10, 0], [0.0, 0.0]), "reach no host"),
        (instance([10, 0], [0.0, 1.0], 0.0), "reach no host"),
        (instance([10, 0], [0.0, 1.0], storage=[None, 0]), "reach no host"),
        (instance([10, 0], [0.0, 1.0], storage=[None, 4]), "no plan that empties"),
    ],
)
def test_samples_that_nobody_could_train_on_are_refused(one: Instance, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        solve(one, "ilp")


def test_no_such_solver_no_budget_and_no_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    one = instance([10, 0], [1.0, 1.0])
    with pytest.raises(BadRequest, match="there are auto, none, greedy"):
        solve(one, "best")
    with pytest.raises(BadRequest, match="more than 0"):
        solve(one, "ilp", budget_s=0)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(BadRequest, match=r"jupyter-elastic\[balance\]"):
        solve(one, "ilp")
    assert solve(one, "auto").solver == "greedy"


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("solver", ["greedy", "ilp"])
def test_what_an_epoch_takes_besides_computing_is_counted_and_moves_nothing_more(solver: str, when: When) -> None:
    plain = instance([900, 100], [10.0, 10.0])
    slow_sum = instance([900, 100], [10.0, 10.0], overhead_s=7.0)
    without, found = solve(plain, solver, when=when), solve(slow_sum, solver, when=when)
    assert found.without_s == without.without_s + 5 * 7.0
    assert found.epoch_s == pytest.approx(without.epoch_s + 7.0, rel=0.01)
    assert found.total_s == pytest.approx(without.total_s + 5 * 7.0, rel=0.01)
