"""Makes PyTorch's `DistributedSampler` follow the group: one made before a change splits for the new group.

Horovod's own elastic example makes its sampler once, before the loop. After a change its old members would go on with
their parts of the old group and the new ones with theirs of the new: samples would count twice, epochs would have
unequal lengths, and at their ends members would wait in different collectives for ever. Imports no framework.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from typing import Any

_made: weakref.WeakSet[Any] = weakref.WeakSet()
_place = (0, 1)
"""This process's last known rank and the group's size."""
_said = False


def handed_over(rank: int, size: int) -> None:
    """Record that the samplers so far are those of another member, of this rank in a group of this size."""
    global _place
    _place = rank, size


def follow(rank: int, size: int) -> None:
    """Let the samplers split for the present group. A sampler for other parts than this process's stays as it is."""
    global _place, _said
    before, _place = _place, (rank, size)
    if before == _place:
        return
    for sampler in list(_made):
        if (sampler.rank, sampler.num_replicas) != before:
            continue
        kind = type(sampler)
        if kind.__init__ is not _base().__init__:
            sys.stderr.write(
                f"note: a {kind.__name__}, made when this worker was rank {before[0]} of {before[1]}, splits so still; "
                f"it is rank {rank} of {size} now. Make the sampler within the training function\n"
            )
            continue
        epoch = sampler.epoch
        kept = {name: getattr(sampler, name) for name in ("shuffle", "seed", "drop_last")}
        kind.__init__(sampler, sampler.dataset, size, rank, **kept)
        sampler.epoch = epoch
        if rank == 0 and not _said:
            _said = True
            sys.stderr.write(
                f"note: a DistributedSampler that was made for a group of {before[1]} splits for {size} workers now\n"
            )


def _base() -> Any:
    return sys.modules["torch.utils.data.distributed"].DistributedSampler


def watch(module: types.ModuleType) -> None:
    """Track the samplers of `torch.utils.data.distributed` that this process makes, or is handed over."""
    kind = module.DistributedSampler
    make = kind.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, *args, **kwargs)
        _made.add(self)

    def __setstate__(self: Any, state: dict[str, Any]) -> None:  # noqa: N807
        vars(self).update(state)
        _made.add(self)

    kind.__init__, kind.__setstate__ = __init__, __setstate__
