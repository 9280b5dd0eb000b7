"""A training under a plan, step by step: what the plan's formula leaves out (schedules of transfers, uneven speed)."""

from __future__ import annotations

import msgspec
import numpy as np

from jupyter_elastic.balance.instance import Instance
from jupyter_elastic.balance.plan import Plan
from jupyter_elastic.types.errors import BadRequest

PARTS = 20
"""Into how many parts a move is cut: between two of them sender and receiver may turn to others."""


class Training(msgspec.Struct, frozen=True):
    """What came of it, in seconds."""

    transfer_s: float
    epoch_s: float
    """Mean over the epochs."""
    total_s: float
    waiting: dict[str, float]
    """By host the share of the epochs' time, 0 to 1, in which it waits for slower ones."""


def simulate(instance: Instance, plan: Plan, *, steps: int = 100, noise: float = 0.0, seed: int = 0) -> Training:
    """Move the samples, then train.

    A sender always serves the receiver that is free and has most to get from it. In each step of an epoch a host works
    through an equal part of its samples, and all wait for the last.

    Args:
        instance: the hosts and links.
        plan: who sends what to whom.
        steps: of an epoch.
        noise: standard deviation of a step's duration, as a share of its mean.
        seed: of numpy's `default_rng`, for the noise.
    """
    if steps < 1 or not 0 <= noise <= 1:
        raise BadRequest("a simulation needs at least one step an epoch, and a noise between 0 and 1")
    index = {host.name: at for at, host in enumerate(instance.hosts)}
    held = np.array([float(host.samples) for host in instance.hosts])
    moves = {}
    for move in plan.moves:
        sender, receiver = index[move.sender], index[move.receiver]
        held[sender] -= move.samples
        held[receiver] += move.samples
        moves[sender, receiver] = move.samples * instance.seconds_a_sample(sender, receiver)
    speeds = np.array([host.speed for host in instance.hosts])
    if (held[speeds == 0] > 0).any():
        raise BadRequest("under this plan a host with `speed` 0 holds samples: its epochs never end")
    a_step = np.divide(held, speeds, out=np.zeros_like(held), where=speeds > 0) / steps
    chance = np.random.default_rng(seed)
    factors = np.maximum(chance.normal(1.0, noise, (instance.epochs * steps, len(held))), 0.05)
    durations = a_step[None, :] * factors
    lasted = durations.max(axis=1) + instance.overhead_s / steps
    transfer, training = _transfer(moves), float(lasted.sum())
    worked = durations.sum(axis=0)
    return Training(
        transfer_s=transfer,
        epoch_s=training / instance.epochs,
        total_s=transfer + training,
        waiting={
            host.name: float(1 - worked[at] / training) if training else 0.0 for at, host in enumerate(instance.hosts)
        },
    )


def _transfer(moves: dict[tuple[int, int], float]) -> float:
    """Seconds until all is moved: one receiver a sender and one sender a receiver at a time."""
    parts = {pair: PARTS for pair, seconds in moves.items() if seconds > 0}
    running: dict[tuple[int, int], float] = {}
    now = 0.0
    while parts or running:
        for pair in sorted(parts, key=lambda pair: -parts[pair] * moves[pair]):
            if all(pair[0] != other[0] and pair[1] != other[1] for other in running):
                running[pair] = now + moves[pair] / PARTS
                parts[pair] -= 1
                if not parts[pair]:
                    del parts[pair]
        now = min(running.values())
        running = {pair: end for pair, end in running.items() if end > now}
    return now
