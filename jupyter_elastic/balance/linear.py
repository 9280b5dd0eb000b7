"""Plans by linear programs: HiGHS, by SciPy's `milp`.

The problem, for hosts i with D_i samples and speed c_i, links b_ij, samples of s bytes and E epochs: choose whole
numbers x_ij >= 0 of samples that i sends to j, an epoch's time T and the transfer's time C, to

    minimise  E T + C                     (overlapped: F + (E - 1) T  with  F >= T, F >= C)
    so that   D_i + in_i - out_i <= c_i T         the slowest host sets a synchronous epoch (what an epoch takes
                                                  besides computing is a constant, and added to F and the result)
              out_i <= what may leave i           own samples only, nothing is passed on
              in_i - out_i <= storage_i - D_i
              sum_j s x_ij / b_ij <= C,  sum_j s x_ji / b_ji <= C      one host sends to one, and receives from one,
              at a time
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jupyter_elastic.balance.instance import Instance
from jupyter_elastic.balance.transfer_plan import Amounts, When, measure
from jupyter_elastic.types.errors import BadRequest

GAP = 1e-3
"""Relative distance from the optimum at which the exact solver may stop."""


def linear(instance: Instance, when: When, budget_s: float, *, whole: bool) -> Amounts:
    """The best plan, or the best one found within the budget.

    Args:
        instance: the hosts and links.
        when: whether the samples move before the training or during its first epoch.
        budget_s: seconds that HiGHS has.
        whole: whether in whole samples (an integer program), else in fractions that are then rounded.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array
    except ImportError:
        raise BadRequest(
            'this solver needs SciPy: pip install "jupyter-elastic[balance]"; the solver `greedy` does without'
        ) from None
    links = _links(instance)
    if not links:
        return {}
    goal, rows, limits = _program(instance, when, links)
    at = [index for index, row in enumerate(rows) for _ in row]
    where = [variable for row in rows for variable in row]
    what = [factor for row in rows for factor in row.values()]
    kinds, most = np.zeros(len(goal)), np.full(len(goal), math.inf)
    kinds[: len(links)] = whole
    most[: len(links)] = [instance.movable(sender) for sender, _ in links]
    answer: Any = milp(
        goal,
        integrality=kinds,
        bounds=Bounds(0, most),
        constraints=LinearConstraint(csr_array((what, (at, where)), shape=(len(rows), len(goal))), -math.inf, limits),
        options={"time_limit": budget_s, "mip_rel_gap": GAP},
    )
    if answer.x is None:  # time ran out before the first whole plan
        return linear(instance, when, budget_s, whole=False) if whole else {}
    found = {link: float(round(v) if whole else v) for link, v in zip(links, answer.x, strict=False)}
    return {link: samples for link, samples in _rounded(instance, found, when).items() if samples}


def _links(instance: Instance) -> list[tuple[int, int]]:
    """Return the links over which samples may go."""
    hosts = range(len(instance.hosts))
    return [
        (i, j)
        for i in hosts
        for j in hosts
        if i != j and instance.movable(i) and (instance.room(j) or instance.movable(j)) and instance.bandwidth[i][j] > 0
    ]


def _program(
    instance: Instance, when: When, links: list[tuple[int, int]]
) -> tuple[Any, list[dict[int, float]], list[float]]:
    """Return the factors to minimise, rows of factors by variable, and the maximum of each row.

    Variables: one x for each link, then T, C and, overlapped, F. A host without samples on it needs no row.
    """
    epoch, transfer, first = len(links), len(links) + 1, len(links) + 2
    rows: list[dict[int, float]] = []
    limits: list[float] = []

    def at_most(row: dict[int, float], limit: float) -> None:
        rows.append(row)
        limits.append(limit)

    outs: list[list[int]] = [[] for _ in instance.hosts]
    intos: list[list[int]] = [[] for _ in instance.hosts]
    for index, (sender, receiver) in enumerate(links):
        outs[sender].append(index)
        intos[receiver].append(index)
    for number, (host, out, into) in enumerate(zip(instance.hosts, outs, intos, strict=True)):
        balance = {**dict.fromkeys(into, 1.0), **dict.fromkeys(out, -1.0)}
        at_most({**balance, epoch: -host.speed}, -host.samples)
        if out:
            at_most(dict.fromkeys(out, 1.0), instance.movable(number))
        if host.storage is not None and into:
            at_most(balance, instance.room(number))
        for indices in (out, into):
            if indices and instance.sample_bytes:
                at_most({**{i: instance.seconds_a_sample(*links[i]) for i in indices}, transfer: -1.0}, 0.0)
    if when == "before":
        goal = np.zeros(len(links) + 2)
        goal[epoch], goal[transfer] = instance.epochs, 1.0
        return goal, rows, limits
    goal = np.zeros(len(links) + 3)
    goal[epoch], goal[first] = instance.epochs - 1, 1.0
    at_most({epoch: 1.0, first: -1.0}, -instance.overhead_s)
    at_most({transfer: 1.0, first: -1.0}, 0.0)
    return goal, rows, limits


def _rounded(instance: Instance, found: dict[tuple[int, int], float], when: When) -> dict[tuple[int, int], int]:
    """Round a plan in fractions to whole samples: down, and then one by one from the host that would be last.

    Rounding down alone leaves samples on hosts for which each takes long, or, with `speed` 0, for ever.
    """
    hosts = instance.hosts
    amounts = {link: math.floor(value + 1e-6) for link, value in found.items() if value > 1e-6}
    held = [host.samples for host in hosts]
    leave = [instance.movable(host) for host in range(len(hosts))]
    most = [host.samples + instance.room(number) for number, host in enumerate(hosts)]

    def send(link: tuple[int, int], samples: int) -> None:
        amounts[link] = amounts.get(link, 0) + samples
        leave[link[0]] -= samples
        held[link[0]] -= samples
        held[link[1]] += samples

    for link, samples in list(amounts.items()):
        amounts[link] = 0
        send(link, samples)
    # a host that passes samples on may now get more than it has room for, or send one too many of very many
    while bad := [link for link, n in amounts.items() if n and (held[link[1]] > most[link[1]] or leave[link[0]] < 0)]:
        send(bad[0], -min(amounts[bad[0]], max(held[bad[0][1]] - most[bad[0][1]], -leave[bad[0][0]])))
    down = dict(amounts)

    def seconds(host: int, more: int) -> float:
        samples, speed = held[host] + more, hosts[host].speed
        return 0.0 if samples <= 0 else samples / speed if speed else math.inf

    for _ in range(2 * len(amounts)):
        last = max(range(len(hosts)), key=lambda host: seconds(host, 0))
        ways = [link for link in amounts if link[0] == last and leave[last] > 0 and held[link[1]] < most[link[1]]]
        way = max(ways, key=lambda link: found[link] - amounts[link], default=None)
        if way is None or seconds(way[1], 1) >= seconds(last, 0):
            break
        send(way, 1)
    return min((down, amounts), key=lambda one: measure(instance, one, when).total_s)
