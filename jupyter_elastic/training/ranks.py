"""Finds this process's group, and its rank there: from its job's engine, or from another launcher of the process."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from jupyter_elastic.platform import entry_points
from jupyter_elastic.training import group as process_group
from jupyter_elastic.training import link
from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import Group, Groups, PeerLost, SingleProcess
from jupyter_elastic.training.pace import pace
from jupyter_elastic.types.capabilities import capabilities_of
from jupyter_elastic.types.errors import EngineError

_Result = TypeVar("_Result")


def groups() -> Groups | None:
    """Return the object that forms this process's groups; None if its workers, if any, don't know each other."""
    if link.current is not None:
        return link.current.groups
    return next((made for launched in _launchers() if (made := launched()) is not None), None)


@functools.cache
def _launchers() -> list[Callable[[], Groups | None]]:
    """Return the `launched` of each engine that can tell if another launcher than ours has started this process."""
    found = []
    for entries in entry_points.installed(entry_points.ENGINES).values():
        with contextlib.suppress(EngineError):  # another engine, which is not needed now
            module, _, name = capabilities_of(entry_points.load(entries)).launched.partition(":")
            if module:
                found.append(getattr(importlib.import_module(module), name))
    return found


def choose(framework: str | None) -> Group:
    """Return the group for a framework (`torch`, `tensorflow`, or None: any)."""
    found = groups()
    if found is not None:
        return found.group(framework)
    if link.current is not None and workers() > 1:
        raise EngineError(
            f"The engine {link.current.engine!r} forms no process group: each worker of this job would train a "
            "model of its own, apart from the others. Run the cell with `--engine torch` (PyTorch) or `--engine "
            "horovod` (`jupyter elastic admin build-horovod` builds it), or on one worker with `--gpus 1`."
        )
    return SingleProcess()


def formed() -> Group | None:
    """Return the group that the cell has formed itself, as by `hvd.init()`; None if there is none."""
    found = groups()
    return None if found is None else found.formed()


def members() -> tuple[int, int]:
    """Return this worker's rank and the number that train together, within `run` and outside of it."""
    if context.group is not None or context.warming_up:
        return context.rank, context.size
    found = groups()
    if found is None:
        return 0, 1
    group = found.formed()
    return in_job() if group is None else (group.rank(), group.size())


def in_job() -> tuple[int, int]:
    """Return this worker's rank and the job's present number of workers, training together or not."""
    if context.group is not None or context.warming_up:
        return context.rank, context.size
    return int(os.environ.get("RANK", "0")), workers()


def workers() -> int:
    """Return the job's present number of workers, training together or not."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def collective(call: Callable[[], _Result]) -> _Result:
    """Make a collective of the training's group; its failure counts even if a cell catches every exception."""
    context.collective()
    try:
        with pace.waiting():
            return translated(call)
    except PeerLost as lost:
        context.interrupt(lost)


def change_agreed(group: Group) -> bool:
    """Return True if the group is to change: its members ask each other once a step."""
    if context.change is None:
        wanted = context.change_wanted()
        if group.size() > 1:
            flag = np.array([float(wanted)])
            wanted = bool(collective(lambda: group.total(flag))[0])
        context.change = wanted
    return context.change


def translated(call: Callable[[], _Result]) -> _Result:
    """Call, and raise `PeerLost` for any error that means a lost member."""
    found = groups()
    return call() if found is None else process_group.translated(call, found.peer_lost)


def warm_up() -> None:
    """Use the collectives of a group of one for the first time (see `WARM_STEP`)."""
    group = context.group
    if group is not None and group.elastic and (context.warming_up or group.size() == 1):
        group.broadcast(b"warm")
        group.total(np.zeros(1))
    context.warm = True
