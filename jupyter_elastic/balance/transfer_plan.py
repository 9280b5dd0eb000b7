"""Measures a plan's cost and gain: one measure for all solvers, so that their figures can be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from jupyter_elastic.balance.instance import Instance, SampleMove

When = Literal["before", "overlapped"]
"""Time of the transfer: before the training, or while the first epoch runs on the samples already there."""
Amounts = Mapping[tuple[int, int], int]
"""Samples by (sender, receiver), hosts by index."""


class TransferPlan(msgspec.Struct, frozen=True):
    """The transfers between hosts, and their effect. Times are predictions in seconds."""

    solver: str
    """The solver that made the plan; for `auto` the one whose plan was taken."""
    moves: tuple[SampleMove, ...]
    epoch_s: float
    """An epoch with the samples where the plan puts them."""
    transfer_s: float
    total_s: float
    """All epochs and the transfer."""
    without_s: float
    """All epochs without a transfer; infinite if a host that can't train holds samples."""
    why: str


class Cost(msgspec.Struct, frozen=True):
    """The cost of some moves."""

    epoch_s: float
    transfer_s: float
    total_s: float


def measure(instance: Instance, amounts: Amounts, when: When = "before") -> Cost:
    """Return the cost of moving these amounts.

    A synchronous epoch takes as long as its slowest host, plus its overhead. A host sends to one host at a time and
    receives from one, both at once; the transfer takes as long as the busiest sender or receiver, which a preemptive
    schedule attains (Gonzalez and Sahni, *Open shop scheduling to minimize finish time*, 1976).

    Args:
        instance: the hosts and links.
        amounts: samples by (sender, receiver).
        when: see `When`. Overlapped, the first epoch ends no sooner than the transfer.
    """
    count = len(instance.hosts)
    held = [host.samples for host in instance.hosts]
    sending, receiving = [0.0] * count, [0.0] * count
    for (sender, receiver), samples in amounts.items():
        if samples:
            held[sender] -= samples
            held[receiver] += samples
            seconds = samples * instance.seconds_a_sample(sender, receiver)
            sending[sender] += seconds
            receiving[receiver] += seconds
    transfer = max(*sending, *receiving)
    computing = max(_seconds(samples, host.speed) for samples, host in zip(held, instance.hosts, strict=True))
    epoch = computing + instance.overhead_s
    if when == "before":
        return Cost(epoch, transfer, instance.epochs * epoch + transfer)
    later = (instance.epochs - 1) * epoch if instance.epochs > 1 else 0.0  # no later epoch: avoids 0 * infinity
    return Cost(epoch, transfer, max(epoch, transfer) + later)


def fits(instance: Instance, amounts: Amounts) -> bool:
    """Return whether senders hold and may give all they send, and each receiver has room."""
    for host in range(len(instance.hosts)):
        out = sum(samples for (sender, _), samples in amounts.items() if sender == host)
        into = sum(samples for (_, receiver), samples in amounts.items() if receiver == host)
        if out > instance.movable(host) or into - out > instance.room(host):
            return False
    return all(
        samples >= 0 and sender != receiver and instance.seconds_a_sample(sender, receiver) < math.inf
        for (sender, receiver), samples in amounts.items()
    )


def made(solver: str, instance: Instance, amounts: Amounts, when: When = "before") -> TransferPlan:
    """Make the plan of these amounts, with its reason in words."""
    cost, without = measure(instance, amounts, when), measure(instance, {}, when)
    names = [host.name for host in instance.hosts]
    moves = tuple(
        SampleMove(names[pair[0]], names[pair[1]], amounts[pair]) for pair in sorted(amounts) if amounts[pair]
    )
    why = "nothing moves, as asked" if solver == "none" else _why(instance, moves, cost, without)
    return TransferPlan(solver, moves, cost.epoch_s, cost.transfer_s, cost.total_s, without.total_s, why)


def _why(instance: Instance, moves: tuple[SampleMove, ...], cost: Cost, without: Cost) -> str:
    slowest = max(instance.hosts, key=lambda host: _seconds(host.samples, host.speed))
    if not any(host.samples for host in instance.hosts):
        return "no host holds a sample"
    if not moves and math.isinf(without.epoch_s):
        return f"{slowest.name} holds {slowest.samples} samples, trains on none, and none can leave it"
    if not moves and not instance.movable(instance.hosts.index(slowest)):
        return f"nothing moves: an epoch takes {without.epoch_s:.3g} s, and no sample may leave {slowest.name}"
    if not moves:
        return (
            f"nothing moves: an epoch takes {without.epoch_s:.3g} s as the samples lie, {slowest.name} last, and no "
            "transfer wins back its time"
        )
    samples = sum(move.samples for move in moves)
    gain = "" if math.isinf(without.total_s) else f", {without.total_s / cost.total_s:.2f} times as fast"
    before = "for ever" if math.isinf(without.epoch_s) else f"{without.epoch_s:.3g} s"
    return (
        f"{samples} samples move in {cost.transfer_s:.3g} s; an epoch takes {cost.epoch_s:.3g} s instead of {before} "
        f"({slowest.name} was the last){gain}"
    )


def _seconds(samples: int, speed: float) -> float:
    if samples <= 0:
        return 0.0
    return samples / speed if speed > 0 else math.inf
