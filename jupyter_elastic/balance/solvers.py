"""The solvers: an exact one (ILP), its relaxation with rounding (LP), a greedy one, none, the best of them (auto).

`linear` states the problem that they solve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jupyter_elastic.balance.instance import Instance
from jupyter_elastic.balance.linear import linear
from jupyter_elastic.balance.transfer_plan import Amounts, TransferPlan, When, fits, made, measure
from jupyter_elastic.types.errors import BadRequest

TARGETS, ROUNDS = 12, 3
"""Number of epoch times that the greedy plan tries in a round, and number of rounds."""
CHUNKS_A_HOST, CHUNKS = 15, 150
"""Number of parts that the greedy plan moves: for each host, and at most in all."""
POWER = 6
"""Exponent by which busy hosts count more than idle ones in the greedy plan's choice of a link."""
RELAYING_HOSTS = 100
"""Maximum number of hosts for which the greedy plan tries two quick links in place of a slow one."""
EXACT_HOSTS, LINEAR_HOSTS = 20, 200
"""Maximum number of hosts for which `auto` runs the exact solver, about a second for these, or the relaxation."""


Solver = Callable[[Instance, When, float], Amounts]


def none(instance: Instance, when: When, budget_s: float) -> Amounts:  # noqa: ARG001
    """Leave all samples where they are."""
    return {}


def ilp(instance: Instance, when: When, budget_s: float) -> Amounts:
    """Return the best plan, to `linear.GAP`, or the best one found within the budget: HiGHS by SciPy's `milp`."""
    return linear(instance, when, budget_s, whole=True)


def lp(instance: Instance, when: When, budget_s: float) -> Amounts:
    """Return the best plan in fractions of samples, rounded: for many hosts. About a sample a link off."""
    return linear(instance, when, budget_s, whole=False)


def greedy(instance: Instance, when: When, budget_s: float) -> Amounts:  # noqa: ARG001
    """Try epoch times; at each let overloaded hosts send where that adds least to the busiest; return the best plan.

    Needs no library. The tried times lie evenly, by their logarithms, between the shortest epoch that any plan can have
    and today's, and then, in two more rounds, around the best so far. Within 3 % of the best plan on ordinary networks,
    8 % on very slow ones.
    """
    seconds = np.array(
        [
            [instance.seconds_a_sample(i, j) if i != j else math.inf for j in range(len(instance.hosts))]
            for i in range(len(instance.hosts))
        ]
    )
    lowest, highest = _range_of_epochs(instance)
    best: Amounts = {}
    best_s, best_target = measure(instance, best, when).total_s, highest
    if not lowest:
        return best
    width = highest / lowest
    for _round in range(ROUNDS):
        low, high = max(lowest, best_target / width), min(highest, best_target * width)
        for target in np.geomspace(low, high, TARGETS):
            if instance.epochs * target >= best_s:
                break  # no transfer is quick enough for this one and all that follow
            amounts = _sent_for(instance, float(target), seconds)
            total = measure(instance, amounts, when).total_s
            if total < best_s:
                best, best_s, best_target = amounts, total, float(target)
        width = (high / low) ** (1 / (TARGETS - 1))
    return best


def auto(instance: Instance, when: When, budget_s: float) -> tuple[str, Amounts]:
    """Return the best of `greedy` and, with SciPy, `ilp` or `lp` (many hosts); no transfer when that is best.

    Returns:
        the solver whose plan it is, and the plan
    """
    chosen: list[Solver] = [greedy]
    if len(instance.hosts) <= LINEAR_HOSTS and _has_scipy():
        chosen.append(ilp if len(instance.hosts) <= EXACT_HOSTS else lp)
    found = [(solver.__name__, solver(instance, when, budget_s)) for solver in chosen]
    found.append((found[0][0], {}))
    return min(found, key=lambda one: measure(instance, one[1], when).total_s)


_NAMED: dict[str, Solver] = {"none": none, "greedy": greedy, "lp": lp, "ilp": ilp}
SOLVERS = ("auto", *_NAMED)


def solve(instance: Instance, solver: str = "auto", *, when: When = "before", budget_s: float = 5.0) -> TransferPlan:
    """Make a plan, which is never slower than no transfer.

    Args:
        instance: the hosts and links.
        solver: one of `SOLVERS`.
        when: whether the samples move before the training or during its first epoch.
        budget_s: seconds that the exact solver has; it then gives the best plan so far.

    Raises:
        BadRequest: no such solver, or samples lie where no host can train on them; the message says what to change.
    """
    if solver not in SOLVERS:
        raise BadRequest(f"there is no solver {solver!r}; there are {', '.join(SOLVERS)}")
    if not math.isfinite(budget_s) or budget_s <= 0:
        raise BadRequest(f"the budget of a solver is {budget_s} s; it must be more than 0")
    _check_trainable(instance)
    if solver == "auto":
        solver, amounts = auto(instance, when, budget_s)
    else:
        amounts = _NAMED[solver](instance, when, budget_s)
        if measure(instance, amounts, when).total_s > measure(instance, {}, when).total_s:
            amounts = {}
    if math.isinf(measure(instance, amounts, when).total_s):
        if solver == "none":
            raise BadRequest("a host trains on nothing (`speed` 0) and holds samples: with the solver `none` they stay")
        raise BadRequest(
            f"{solver} found no plan that empties the hosts which train on nothing (`speed` 0); try the solver `ilp` "
            "or give them more links or the others more storage"
        )
    if not fits(instance, amounts):
        raise AssertionError(f"{solver} made a plan that the hosts can't carry out: {amounts}")
    return made(solver, instance, amounts, when)


def _check_trainable(instance: Instance) -> None:
    """Refuse samples on a host without speed that can't be moved to one with speed."""
    for index, host in enumerate(instance.hosts):
        if host.speed > 0 or not host.samples:
            continue
        stay = host.samples - instance.movable(index)
        if stay:
            raise BadRequest(f"{host.name} trains on nothing (`speed` 0) but {stay} of its samples must stay there")
        ways = [
            other
            for other, to in enumerate(instance.hosts)
            if other != index and to.speed > 0 and instance.room(other) and instance.bandwidth[index][other] > 0
        ]
        if not ways:
            raise BadRequest(
                f"{host.name} trains on nothing (`speed` 0) and its {host.samples} samples reach no host that does; "
                "give it a link to one, or storage there"
            )


# --- greedy


def _range_of_epochs(instance: Instance) -> tuple[float, float]:
    """Return the shortest epoch that any plan could have, and the longest worth trying."""
    total, speed = sum(host.samples for host in instance.hosts), sum(host.speed for host in instance.hosts)
    if not total:
        return 0.0, 0.0
    now = [host.samples / host.speed for host in instance.hosts if host.speed > 0]
    if any(host.samples for host in instance.hosts if not host.speed):
        now.append(total / min(host.speed for host in instance.hosts if host.speed > 0))
    return total / speed, max(now)


def _sent_for(instance: Instance, epoch_s: float, seconds: Any) -> Amounts:
    """Return the amounts to send so that an epoch takes at most `epoch_s`, if that is possible.

    Chunk after chunk, the host that will be busy longest sends: straight to a host with room, or to one that passes as
    many of its own samples on to a host with room (nothing is relayed, and two quick links may beat a slow one). The
    path is chosen that adds least to the sum of the hosts' sending and receiving times to the power of `POWER`, which
    stands for the greatest of them.
    """
    hosts = instance.hosts
    movable = np.array([instance.movable(host) for host in range(len(hosts))])
    surplus = np.array([max(0, math.ceil(one.samples - one.speed * epoch_s - 1e-9)) for one in hosts])
    surplus = np.minimum(surplus, movable)
    own = movable - surplus
    room = np.array([max(0, math.floor(one.speed * epoch_s - one.samples + 1e-9)) for one in hosts])
    room = np.minimum(room, [instance.room(host) for host in range(len(hosts))])
    quickest = seconds.min(axis=1)
    surplus[~np.isfinite(quickest)] = 0
    if not surplus.any() or not room.any():
        return {}
    quickest[~np.isfinite(quickest)] = 0.0
    scale = max(float((surplus * quickest).max()), 1e-12)
    chunk = max(1, -(-int(surplus.sum()) // min(CHUNKS, CHUNKS_A_HOST * len(hosts))))
    sending, receiving = np.zeros(len(hosts)), np.zeros(len(hosts))
    amounts: dict[tuple[int, int], int] = {}

    def send(sender: int, receiver: int, samples: int) -> None:
        sending[sender] += samples * seconds[sender, receiver] / scale
        receiving[receiver] += samples * seconds[sender, receiver] / scale
        amounts[sender, receiver] = amounts.get((sender, receiver), 0) + samples

    while surplus.any():
        sender = int(np.where(surplus > 0, sending + surplus * quickest / scale, -1.0).argmax())
        samples = min(chunk, int(surplus[sender]))
        first, behind = (0, len(hosts)) if len(hosts) <= RELAYING_HOSTS else (sender, sender + 1)
        sent, took = sending[first:behind, None], seconds[first:behind] * (samples / scale)
        added = (sent + took) ** POWER - sent**POWER + (receiving + took) ** POWER - receiving**POWER
        with_room = np.where(room > 0, added, math.inf)
        straight = with_room[sender - first]
        through = added[sender - first, first:behind, None] + with_room
        through[own[first:behind] < samples, :] = math.inf
        through[sender - first, :] = math.inf
        receiver, (between, last) = int(straight.argmin()), divmod(int(through.argmin()), len(hosts))
        if through[between, last] < straight[receiver]:
            samples = min(samples, int(room[last]))
            send(sender, between, samples)
            send(between, last, samples)
            own[between] -= samples
        elif math.isfinite(straight[receiver]):
            last = receiver
            samples = min(samples, int(room[last]))
            send(sender, last, samples)
        else:
            surplus[sender] = 0  # no link is left for the rest
            continue
        room[last] -= samples
        surplus[sender] -= samples
    return amounts


def _has_scipy() -> bool:
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        return False
    return True
