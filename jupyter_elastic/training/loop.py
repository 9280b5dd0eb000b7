"""The loop over batches: yields a worker's samples of each step, and keeps the state's position on the way.

Data that all workers reach are divided anew in each step (`iterate`); samples that the workers hold themselves stay
with their holders, and move when that pays (`iterate_local`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_elastic.training import data
from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import Group
from jupyter_elastic.training.pace import pace
from jupyter_elastic.training.position import NOWHERE
from jupyter_elastic.training.ranks import collective
from jupyter_elastic.training.state import position_of
from jupyter_elastic.training.unequal import exchange, local_shards
from jupyter_elastic.training.unequal.local_shards import LocalShard
from jupyter_elastic.types.errors import BadRequest

_idle_said = False


def iterate(  # noqa: PLR0913  the arguments of `batches`
    content: Any,
    batch_size: int,
    *,
    shuffle: bool,
    seed: int,
    micro_batch: int | None,
    collate: Callable[[list[Any]], Any] | None,
    balanced: bool = False,
    drop_last: bool = False,
    least: int | None = None,
) -> Iterator[Any]:
    """Yield the batches of one pass over the data, from the state's position on; keep that position (see `batches`)."""
    position = position_of(context.state)
    count = data.length(content)
    if position.looping:
        position = NOWHERE  # a loop within a loop (an evaluation, say) has no position of its own
    start = position.enter(count)
    count -= count % batch_size if drop_last else 0
    number = data.steps(count, batch_size)
    if start is None:
        position.seed(seed, number, 0)
        return
    order = data.order(
        data.length(content), seed=seed, epoch=0 if context.state is None else int(context.state.epoch), shuffle=shuffle
    )
    workers = position.logical_workers
    _say_idle(batch_size, (workers or context.size) if least is None else 1)
    opened = position.open()
    try:
        for step in range(start, number):
            batch = order[step * batch_size : (step + 1) * batch_size]
            position.begin_turn(step, start)
            sizes = _sizes(len(batch)) if balanced and position.own else None
            computed = 0
            for taken in (
                data.logical_batches(batch, step, context.rank, context.size, workers, least or data.LEAST)
                if workers
                else data.micro_batches(
                    batch, step, context.rank, context.size, micro_batch, sizes, least or data.LEAST
                )
            ):
                position.take(taken)
                position.seed(seed, step, 1 + (taken.worker or 0))
                computed += len(taken.indices)
                yield data.take(content, taken.indices, collate)
                context.given = None
                context.require_group()
            position.end_turn(len(batch), computed, step + 1, count)
    finally:
        position.close(opened)
    position.leave()
    position.seed(seed, number, 0)


def iterate_local(
    shard: LocalShard,
    batch_size: int,
    *,
    shuffle: bool,
    seed: int,
    micro_batch: int | None,
    collate: Callable[[list[Any]], Any] | None,
    drop_last: bool = False,
) -> Iterator[Any]:
    """Yield the batches of one pass over the samples of all workers, each from its own samples (see `shard`)."""
    position = position_of(context.state)
    if position.looping:
        raise BadRequest("A loop over a training.shard(..., balance=...) can't be within another loop over batches.")
    start = position.enter(len(shard))
    if start is None:
        return
    step = first = start
    group = None if context.warming_up else context.group
    rank = 0 if group is None else group.rank()
    local_shards.agree(shard, group)
    shard.begin_epoch(0 if context.state is None else int(context.state.epoch), start)
    opened = position.open()
    moved = True
    try:
        while moved:
            moved = False
            ids = shard.waiting(seed, shuffle=shuffle)
            held = shard.held = local_shards.counts(len(shard), group)
            table = local_shards.shares(local_shards.counts(len(ids), group), batch_size)
            if group is not None and group.size() > 1:
                shard.share_company(rank, group, held)
            at = 0
            for row in (row for row in table if not drop_last or row.sum() == batch_size):
                position.begin_turn(step, first)
                if moved := _rebalanced(shard, math.ceil(sum(held) / batch_size)):
                    break
                some, at = ids[at : at + int(row[rank])], at + int(row[rank])
                if not context.warming_up:
                    shard.mark(some, step)
                for part, taken in local_shards.pieces(some, row, rank, step, micro_batch):
                    position.take(taken)
                    yield shard.take(part, collate)
                    context.given = None
                    context.require_group()
                position.end_turn(int(row.sum()), max(1, len(some)), step + 1, sum(held))
                step += 1
    finally:
        position.close(opened)
    position.leave()


def _say_idle(batch_size: int, size: int) -> None:
    """Print once that some of `size` workers have no share of any batch, for no worker gets a single sample."""
    global _idle_said
    idle = data.shares(batch_size, size, data.LEAST).count(0)
    if batch_size > 1 and idle and context.rank == 0 and not _idle_said:
        _idle_said = True
        sys.stderr.write(
            f"note: {idle} of {size} workers have no share of a batch of {batch_size} samples, for nobody gets "
            "fewer than two (BatchNorm needs them). training.batches(..., least=1) shares them out one by one.\n"
        )


def _rebalanced(shard: LocalShard, steps: int) -> bool:
    """Return True if samples have moved before this turn, because the workers' speeds are known or have changed.

    The speeds are known before the first turn if an earlier training has measured them.

    `steps` are those of an epoch.
    """
    group, state = context.group, context.state
    if shard.solver == "none" or group is None or state is None or context.warming_up or group.size() == 1:
        return False
    due = pace.due
    told = _told(group)
    if due:
        shard.show(group)
    if told:
        exchange.remember(shard, group, speeds=pace.speeds)
    elif pace.asked or pace.turns or not pace.recall(exchange.recalled(shard, group)):
        pace.begin()
        return False
    assert pace.speeds is not None
    epochs = 1 if context.epochs is None else context.epochs - int(state.epoch)
    moved = exchange.rebalance(shard, group, pace.speeds, epochs, context.change_wanted, pace.overhead_s * steps)
    if not moved:
        pace.begin()
    return moved


def _sizes(total: int) -> list[int] | None:
    """Return the samples of each rank in a global batch, by the speeds that the members have exchanged."""
    group = context.group
    if group is None or context.warming_up or group.size() == 1:
        return None
    _told(group)
    pace.begin()
    return pace.sizes(total)


def _told(group: Group) -> bool:
    """Exchange the speeds when it is time; return True if they are new ones, to plan by."""
    if not context.reducers:
        raise BadRequest(
            "Shares by speed need gradients that are weighed by the samples of each worker: put the optimizer into "
            "training.State, or leave `balance` out."
        )
    if not pace.due:
        return False
    mine = pace.figures(group.rank(), group.size())
    return pace.learn(collective(lambda: group.total(mine)))
