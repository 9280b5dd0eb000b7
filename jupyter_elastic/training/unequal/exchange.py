"""Moves samples to the faster workers: links are measured, rank 0 plans, and all carry the plan out in rounds.

A receiver owns a sample from the moment that its bytes are there and checked, and only then does its sender give it up
(see `local_shards`).
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from jupyter_elastic.balance import memory
from jupyter_elastic.balance.instance import MAX_EPOCHS, DataHost, Instance
from jupyter_elastic.balance.solvers import solve
from jupyter_elastic.balance.transfer_plan import TransferPlan
from jupyter_elastic.platform import paths, private_files
from jupyter_elastic.training import data
from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import Group
from jupyter_elastic.training.pace import DRIFT, pace
from jupyter_elastic.training.ranks import collective
from jupyter_elastic.training.unequal.local_shards import Declaration, LocalShard, SampleId, agree, counts, holders
from jupyter_elastic.training.unequal.samples import pickled
from jupyter_elastic.types.errors import BadRequest, ElasticError, EngineError

CHUNK = 1 << 20
"""Approximate bytes that a worker sends another in one round."""
TRIES = 3
"""Maximum number of times that a chunk is sent which arrives damaged."""
PROBES = (1 << 16, 1 << 19, 1 << 22)
"""Bytes by which a link is measured: the next size if one took less than `PROBE_S`."""
PROBE_S = 0.02
EXACT_S = 3.0
"""Seconds that the exact solver may cost: importing it takes a second of a processor, and more on a slow host."""
GREEDY_OFF = 0.03
"""Part by which the greedy plan may be slower than the best one."""
GAIN = 1.05
"""Factor by which a plan must speed up the rest of the training, transfer included, to be carried out."""
WATCHED = 3
"""Number of rounds after which a transfer is compared with its plan."""
MAX_SAID = 16
"""Maximum number of hosts that are named when a plan is printed."""
MEASURED = "measured.json"
"""File of the user's state folder in which speeds and bandwidths are remembered."""


class _Answer(msgspec.Struct, frozen=True):
    """The plan of rank 0, or why there is none."""

    plan: TransferPlan | None = None
    problem: str = ""


# Made once: msgspec crashes where two threads of a process make the first decoder of a kind at the same time.
_ANSWER = msgspec.msgpack.Decoder(_Answer)


def measured_bandwidth(group: Group) -> tuple[tuple[float, ...], ...]:
    """Return bytes/s from each member to each other, by short transfers over links that have no member in common."""
    rank, size = group.rank(), group.size()
    empty = min(max(_seconds(group, [b""] * size)) for _ in range(3))
    found = [[0.0] * size for _ in range(size)]
    for links in pairings(size):
        left = dict(links)
        for length in PROBES:
            parts = [b"\0" * length if left.get(rank) == to else b"" for to in range(size)]
            took = _seconds(group, parts)
            for sender, receiver in list(left.items()):
                found[sender][receiver] = length / max(took[receiver] - empty, 1e-5)
                if took[receiver] > PROBE_S:
                    del left[sender]
            if not left:
                break
    return tuple(map(tuple, found))


def pairings(size: int) -> list[list[tuple[int, int]]]:
    """Return all links between `size` members, as (sender, receiver), in groups with each member at most once."""
    members = list(range(size)) + [-1] * (size % 2)
    found = []
    for _ in range(len(members) - 1):
        pairs = [(members[at], members[-1 - at]) for at in range(len(members) // 2)]
        pairs = [pair for pair in pairs if min(pair) >= 0]
        found += [pairs, [(receiver, sender) for sender, receiver in pairs]]
        members.insert(1, members.pop())
    return found


def _seconds(group: Group, parts: list[bytes]) -> list[float]:
    """Return the seconds that an exchange takes for each member."""
    ready = np.zeros(1)
    collective(lambda: group.total(ready))
    began = pace.clock()
    collective(lambda: group.exchange(parts))
    return _floats(group, pace.clock() - began)


def _floats(group: Group, mine: float) -> list[float]:
    values = np.zeros(group.size())
    values[group.rank()] = mine
    return [float(value) for value in collective(lambda: group.total(values))]


class _Remembered(msgspec.Struct, frozen=True):
    """Figures of the members from earlier trainings, as rank 0 remembers them."""

    speeds: tuple[float, ...] | None = None
    links: tuple[tuple[float, ...], ...] | None = None


_REMEMBERED = msgspec.msgpack.Decoder(_Remembered)


def recalled(shard: LocalShard, group: Group) -> tuple[float, ...] | None:
    """Return the members' speeds in samples/s as rank 0 remembers them; None unless all are known. Links count too."""
    mine = _Remembered()
    if group.rank() == 0:
        kept, now = _memory(), time.time()
        speeds = memory.speeds_of(kept, context.workload, shard.members, now)
        mine = _Remembered(speeds, memory.bandwidth_of(kept, shard.members, now))
    answer = collective(lambda: group.broadcast(msgspec.msgpack.encode(mine)))
    found = _REMEMBERED.decode(answer)
    if found.links is not None:
        shard.links = (pace.generation, found.links)
    return found.speeds


def remember(
    shard: LocalShard,
    group: Group,
    *,
    speeds: tuple[float, ...] | None = None,
    links: tuple[tuple[float, ...], ...] | None = None,
) -> None:
    """Keep the measurements for later trainings; rank 0 does, in its user's state folder.

    Two trainings that do so at the same time may lose a figure, which is then measured again.
    """
    if group.rank() != 0:
        return
    kept, now = _memory(), time.time()
    if speeds is not None:
        kept = memory.with_speeds(kept, context.workload, shard.members, speeds, now)
    if links is not None:
        kept = memory.with_links(kept, shard.members, links, now)
    with contextlib.suppress(OSError, ElasticError):  # as on a full disk: they are measured again
        private_files.write_json(paths.state_dir() / MEASURED, kept)


def _memory() -> memory.Memory:
    with contextlib.suppress(ElasticError):
        return private_files.read_json(paths.state_dir() / MEASURED, memory.Memory) or memory.Memory()
    return memory.Memory()


def rebalance(
    shard: LocalShard,
    group: Group,
    speeds: Sequence[float],
    epochs: int,
    wanted: Callable[[], bool],
    overhead_s: float = 0.0,
) -> bool:
    """Plan where the samples should lie for the rest of the training, and move them if that pays.

    Args:
        shard: This worker's.
        group: A group of more than one member, all of which call this.
        speeds: Samples/s of each, as measured.
        epochs: Remaining epochs, including the present one.
        wanted: Returns True if this worker knows of a change of the group, for which a transfer ends early.
        overhead_s: Seconds that an epoch takes besides computing, as measured.

    Returns:
        True if any sample moved; the same on all members.
    """
    moved = False
    while True:
        declared = agree(shard, group)
        held = shard.held = counts(len(shard), group)
        shard.show(group, shard.plan.why if shard.plan else "")
        if max(n / s for n, s in zip(held, speeds, strict=True)) < GAIN * sum(held) / sum(speeds):
            return moved
        size = max(counts(_mean_bytes(shard), group))
        if shard.links is None or shard.links[0] != pace.generation:
            shard.links = (pace.generation, measured_bandwidth(group))
            remember(shard, group, links=shard.links[1])
        make = functools.partial(
            planned, declared, held, speeds, shard.links[1], size, epochs, shard.solver, overhead_s
        )
        plan = _agreed(group, make)
        if plan is None or not plan.moves or plan.total_s * GAIN > plan.without_s:
            return moved
        shard.plan, moved = plan, True
        names = holders(declared)
        amounts = {(names.index(m.sender), names.index(m.receiver)): m.samples for m in plan.moves}
        if group.rank() == 0:
            print(said(plan, names, held, speeds, pace.waited_shares), flush=True)  # noqa: T201  seen in the views
        slower, ended = transfer(shard, group, amounts, size, wanted, plan.transfer_s)
        if not 1 / (1 + DRIFT) <= slower <= 1 + DRIFT:
            shard.links = (pace.generation, _corrected(shard.links[1], amounts, slower))
            remember(shard, group, links=shard.links[1])
        if ended:
            shard.held = counts(len(shard), group)
            shard.show(group, plan.why)
            return True


def _agreed(group: Group, make: Callable[[], TransferPlan]) -> TransferPlan | None:
    """Return the plan that rank 0 makes; None, and a warning, when there can be none."""
    mine = _Answer()
    if group.rank() == 0:
        try:
            mine = _Answer(make())
        except BadRequest as refused:
            mine = _Answer(problem=str(refused))
    answer = _ANSWER.decode(collective(lambda: group.broadcast(msgspec.msgpack.encode(mine))))
    if answer.plan is None:
        warnings.warn(f"no samples move: {answer.problem}", stacklevel=3)
    return answer.plan


def _corrected(
    links: tuple[tuple[float, ...], ...], used: Collection[tuple[int, int]], slower: float
) -> tuple[tuple[float, ...], ...]:
    """Return the bandwidths after the used links have turned out to be slower by the factor `slower`."""
    return tuple(
        tuple(value / slower if (sender, receiver) in used else value for receiver, value in enumerate(row))
        for sender, row in enumerate(links)
    )


def said(
    plan: TransferPlan, names: Sequence[str], held: Sequence[int], speeds: Sequence[float], waited: Sequence[float]
) -> str:
    """Describe a plan for a person: the moves and why, and each host's samples, speed and time spent waiting.

    `waited` are shares of the time, 0 to 1; empty if unmeasured.
    """
    lines = [f"balance: {plan.why}"]
    for number, (name, samples, speed) in enumerate(zip(names, held, speeds, strict=True)):
        out = sum(move.samples for move in plan.moves if move.sender == name)
        into = sum(move.samples for move in plan.moves if move.receiver == name)
        share = f", waited {waited[number]:.0%} of the time" if waited else ""
        after = samples - out + into
        lines.append(f"  {name}: {samples} samples, {after} from now on; {speed:.3g} samples/s{share}")
    more = len(lines) - 1 - MAX_SAID
    return "\n".join(lines[: MAX_SAID + 1] + ([f"  and {more} more"] if more > 0 else []))


def planned(
    declared: Sequence[Declaration],
    held: Sequence[int],
    speeds: Sequence[float],
    bandwidth: tuple[tuple[float, ...], ...],
    sample_bytes: float,
    epochs: int,
    solver: str,
    overhead_s: float = 0.0,
) -> TransferPlan:
    """Return the plan for the members' present samples. All wait, so `auto` is `greedy` if that can lose little."""
    hosts = []
    for name, one, count, speed in zip(holders(declared), declared, held, speeds, strict=True):
        storage = None if one.storage is None else max(one.storage, count)
        hosts.append(DataHost(name, count, speed, storage, min(one.pinned, count)))
    instance = Instance(tuple(hosts), bandwidth, sample_bytes, min(max(1, epochs), MAX_EPOCHS), overhead_s)
    if solver == "auto":
        quick = solve(instance, "greedy")
        if quick.total_s * GREEDY_OFF < EXACT_S:
            return quick
    return solve(instance, solver, budget_s=EXACT_S)


def transfer(
    shard: LocalShard,
    group: Group,
    amounts: dict[tuple[int, int], int],
    sample_bytes: float,
    wanted: Callable[[], bool],
    expected_s: float = math.inf,
) -> tuple[float, bool]:
    """Carry out a plan in rounds, in each of which every pair moves the same part of what it has to move.

    If that is more than a message may hold, as with samples of different sizes, there are more rounds. At most one
    round is under way: no member sends before all have taken in what they were sent. Ends early, with every sample at
    one of the two, when a member knows of a change of the group, or when it takes longer than expected by more than
    `DRIFT`: then the rest is worth another plan.

    Returns:
        The time as a multiple of `expected_s`, 1 if unknown; and True if nothing is left to plan.
    """
    rank = group.rank()
    rounds = max(1, *(math.ceil(samples * sample_bytes / CHUNK) for samples in amounts.values()))
    free = shard.movable()
    outgoing: dict[int, list[SampleId]] = {}
    for (sender, receiver), samples in sorted(amounts.items()):
        if sender == rank:
            outgoing[receiver], free = free[:samples], free[samples:]
    sent = dict.fromkeys(outgoing, 0)
    passed_s, number, failures = 0.0, 0, 0
    while True:
        due = {to: data.share(len(ids), min(number, rounds - 1), rounds)[1] for to, ids in outgoing.items()}
        done = _round(shard, group, {to: ids[sent[to] : due[to]] for to, ids in outgoing.items()}, wanted)
        passed_s += done.took_s
        for to, samples in done.sent.items():
            sent[to] += samples
        failures = failures + 1 if done.damaged else 0
        if failures == TRIES:
            raise EngineError(f"samples arrive damaged from another worker, {TRIES} times in a row; they stay there")
        number += not done.damaged
        watched = number >= min(WATCHED, rounds) and passed_s > WATCHED * PROBE_S and expected_s > 0
        slower = passed_s * max(rounds, number) / number / expected_s if watched else 1.0
        if done.change or (number >= rounds and not done.left and not done.damaged):
            return slower, True
        if number < rounds and slower > 1 + DRIFT:
            return slower, False


@dataclass
class _Done:
    """The result of a round."""

    sent: dict[int, int]
    """Number of samples that this worker has given up, by receiver."""
    damaged: bool
    """True if a message arrived damaged, at any worker."""
    left: bool
    """True if a message could not hold all that its sender had for it."""
    change: bool
    took_s: float


def _round(shard: LocalShard, group: Group, parts: dict[int, list[SampleId]], wanted: Callable[[], bool]) -> _Done:
    """Send each member its part, or as much of it as a message holds, and give up what has arrived."""
    rank, size = group.rank(), group.size()
    began = pace.clock()
    packed = [shard.pack(parts.get(to, [])) for to in range(size)]
    arrived = collective(lambda: group.exchange([message for message, _ in packed]))
    mine = np.zeros((size, size + 3))
    mine[:, rank] = [not shard.unpack(message) for message in arrived]
    left = any(packed[to][1] < len(ids) for to, ids in parts.items())
    mine[rank, size:] = float(wanted()), pace.clock() - began, float(left)
    verdict = collective(lambda: group.total(mine))
    sent = {to: packed[to][1] for to in parts if not verdict[rank, to]}
    for to, samples in sent.items():
        shard.give_up(parts[to][:samples])
    changes, took_s, lefts = verdict[:, size], verdict[:, size + 1], verdict[:, size + 2]
    return _Done(sent, bool(verdict[:, :size].any()), bool(lefts.any()), bool(changes.any()), float(took_s.max()))


def _mean_bytes(shard: LocalShard) -> int:
    ids = shard.ids()
    some = ids[:: max(1, len(ids) // 8)][:8]
    return math.ceil(sum(len(pickled(shard.sample(key))) for key in some) / max(1, len(some)))
