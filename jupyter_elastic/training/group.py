"""The workers that train together in this generation, as the rest of `training` sees them.

Knows that there is Horovod and how it is asked for; the frameworks' own ends are in `torch.py` and `tensorflow.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from jupyter_elastic.errors import EngineError
from jupyter_elastic.training import session
from jupyter_elastic.training.context import context

Array = np.ndarray[Any, np.dtype[Any]]


class Group(Protocol):
    """The collectives that state and reports need. Every call is made by all members, in the same order.

    A member that dies makes them raise `HorovodInternalError`; gradients have their own way, beside their framework.
    """

    elastic: bool
    """Whether other generations can come."""

    def init(self) -> None:
        """Come to the rendezvous and join; returns when the group stands."""
        ...

    def shutdown(self) -> None:
        """Leave the group."""
        ...

    def rank(self) -> int:
        """This worker's number."""
        ...

    def size(self) -> int:
        """Members."""
        ...

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's `data`, everywhere."""
        ...

    def total(self, values: Array) -> Array:
        """The sum over all members."""
        ...


class SingleProcess:
    """A group of one: no engine, or an engine whose workers don't know each other."""

    elastic = False

    def init(self) -> None:
        """Nobody to wait for."""

    def shutdown(self) -> None:
        """Nothing to leave."""

    def rank(self) -> int:
        """Always 0."""
        return 0

    def size(self) -> int:
        """Always 1."""
        return 1

    def broadcast(self, data: bytes) -> bytes:
        """`data` itself."""
        return data

    def total(self, values: Array) -> Array:
        """`values` itself."""
        return values


class Horovod:
    """Horovod's group as far as it is the same for every framework; `hvd` is its module for one."""

    elastic = True

    def __init__(self, hvd: Any) -> None:
        self.hvd = hvd

    def init(self) -> None:
        """Join, unless this process is in a group already."""
        if not self.hvd.is_initialized():
            self.hvd.init()

    def shutdown(self) -> None:
        """Leave."""
        self.hvd.shutdown()

    def rank(self) -> int:
        """This worker's number."""
        return 0 if context.warming_up else int(self.hvd.rank())

    def size(self) -> int:
        """Members; in a warm-up step this worker alone, whatever it is promised."""
        return 1 if context.warming_up else int(self.hvd.size())


def in_horovod_job() -> bool:
    """Whether this process is a Horovod worker: ours, or one that another launcher started."""
    current = session.current
    if current is not None:
        return current.engine == "horovod"
    return "HOROVOD_SIZE" in os.environ or "HOROVOD_RANK" in os.environ


def choose(framework: str | None) -> Group:
    """The group for a framework (`torch`, `tensorflow`, or None: whichever is there)."""
    current = session.current
    if not in_horovod_job():
        if current is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise EngineError(
                f"The engine {current.engine!r} forms no process group: each worker of this job would "
                "train a model of its own, apart from the others. Run the cell with `--engine "
                "horovod` (`jupyter elastic build-horovod` builds it), or on one worker with `--gpus 1`."
            )
        return SingleProcess()
    return group_for(framework or _at_hand())


def group_for(framework: str) -> Group:
    """Horovod's group by a framework's tensors."""
    group: Group = importlib.import_module(f"jupyter_elastic.training.{framework}").HorovodGroup()
    return group


def horovod_module() -> Any:
    """The Horovod module that this process already uses, or None."""
    for name in ("horovod.torch", "horovod.tensorflow"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "is_initialized", lambda: False)():
            return module
    return None


def native() -> Group | None:
    """The group that the cell has formed itself by `hvd.init()`; None where there is none."""
    module = horovod_module()
    if module is None:
        return None
    name = "torch" if module.__name__ == "horovod.torch" else "keras"
    group: Group = importlib.import_module(f"jupyter_elastic.training.{name}").HorovodGroup()
    return group


def members() -> tuple[int, int]:
    """This worker's number and how many train together, within `run` and outside of it."""
    if context.group is not None or context.warming_up:
        return context.rank, context.size
    module = horovod_module()
    if module is not None:
        return int(module.rank()), int(module.size())
    if in_horovod_job():
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return 0, 1


def in_job() -> tuple[int, int]:
    """This worker's number and how many the job has now, whether or not they train together."""
    if session.current is None or in_horovod_job():
        return members()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _at_hand() -> str:
    for name, framework in (("horovod.torch", "torch"), ("horovod.tensorflow", "tensorflow"), ("torch", "torch"),
                            ("tensorflow", "tensorflow")):  # fmt: skip
        if name in sys.modules:
            return framework
    for framework in ("torch", "tensorflow"):
        if importlib.util.find_spec(framework) is not None:
            return framework
    raise EngineError(
        "training.run on the engine horovod needs PyTorch or TensorFlow in this environment, and neither is installed. "
        "Install one (`pip install torch`), then run `jupyter elastic build-horovod`."
    )


def is_failure(error: BaseException) -> bool:
    """Whether a collective failed because a member is gone; TensorFlow wraps Horovod's error in one of its own."""
    kind = type(error).__name__
    if kind == "HorovodInternalError":
        return True
    return kind in {"UnknownError", "InternalError", "FailedPreconditionError"} and "orovod" in str(error)


def translated(call: Callable[[], Any]) -> Any:
    """Call, and raise Horovod's own error for any form of it."""
    try:
        return call()
    except Exception as error:
        if not is_failure(error):
            raise
        from horovod.common.exceptions import HorovodInternalError

        if isinstance(error, HorovodInternalError):
            raise
        raise HorovodInternalError(str(error)) from error
