"""Simulates a training under a plan by steps, with what the plan's formula omits: transfer schedules, uneven speed."""

from __future__ import annotations

import msgspec
import numpy as np

from jupyter_elastic.balance.instance import Instance
from jupyter_elastic.balance.transfer_plan import TransferPlan, When
from jupyter_elastic.types.errors import BadRequest

PARTS = 20
"""Number of parts of a move: between two of them sender and receiver may turn to others."""


class Training(msgspec.Struct, frozen=True):
    """The simulated training, in seconds."""

    transfer_s: float
    epoch_s: float
    """Mean over the epochs."""
    total_s: float
    waiting: dict[str, float]
    """Share of the epochs' time, 0 to 1, in which a host waits for slower ones, by host."""


def simulate(
    instance: Instance,
    plan: TransferPlan,
    *,
    when: When = "before",
    steps: int = 100,
    noise: float = 0.0,
    seed: int = 0,
) -> Training:
    """Move the samples, then train; overlapped, the first epoch ends no sooner than the transfer.

    A sender always serves the free receiver that has most to get from it. In each step of an epoch a host works through
    an equal part of its samples, and all wait for the last.

    Args:
        instance: the hosts and links.
        plan: the moves.
        when: as the plan was made for.
        steps: of an epoch.
        noise: standard deviation of a step's duration, as a share of its mean.
        seed: of numpy's `default_rng`, for the noise.
    """
    if steps < 1 or not 0 <= noise <= 1:
        raise BadRequest("a simulation needs at least one step an epoch, and a noise between 0 and 1")
    if seed < 0:
        raise BadRequest(f"the seed of a simulation is {seed}; it must be 0 or more")
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
    transfer, first_s, training, worked = _transfer(moves), 0.0, 0.0, np.zeros_like(held)
    chance = np.random.default_rng(seed)
    for epoch in range(instance.epochs if noise else 1):
        durations = a_step[None, :] * np.maximum(chance.normal(1.0, noise, (steps, len(held))), 0.05)
        lasted = float(durations.max(axis=1).sum()) + instance.overhead_s
        worked += durations.sum(axis=0)
        training += lasted
        first_s = first_s if epoch else lasted
    if not noise:  # all epochs are alike
        training, worked = training * instance.epochs, worked * instance.epochs
    total = training + (transfer if when == "before" else max(0.0, transfer - first_s))
    return Training(
        transfer_s=transfer,
        epoch_s=training / instance.epochs,
        total_s=total,
        waiting={
            host.name: float(1 - worked[at] / training) if training else 0.0 for at, host in enumerate(instance.hosts)
        },
    )


def _transfer(moves: dict[tuple[int, int], float]) -> float:
    """Return the seconds until all is moved: one receiver a sender and one sender a receiver at a time."""
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
