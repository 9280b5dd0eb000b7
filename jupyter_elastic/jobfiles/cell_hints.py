"""Declares what is read from a cell's text before it runs, and an engine's claim to the cell. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct


class EngineFit(IntEnum):
    """An engine's degree of fit for a cell."""

    ANY = 0
    """Runs the cell as it runs any."""
    CAN = 1
    """Forms groups that the cell can use."""
    GOOD = 2
    """Forms groups that the cell can use, and is preferred to others that can."""
    OWN = 3
    """The cell uses the engine's own library."""


class Claim(NamedTuple):
    """An engine's claim to a cell. The highest fit is chosen; at a tie, the engine first by name."""

    fit: EngineFit
    why: str
    """Reason, such as `the cell uses training`."""
    only: bool = False
    """True if on another engine each worker would silently train alone."""


class CellText(Struct, frozen=True):
    """Hints from a cell's text and its captured names. Hints only: workers report the facts."""

    elastic: bool = False
    """True if the cell can regroup: it uses Horovod's elastic API or our `training.run`."""
    forms_groups: bool = False
    library: bool = False
    """True if the cell imports the engine's own library, or has captured something of it."""
    training: bool = False
    """True if the cell uses this package's `training`."""
    torch_distributed: bool = False
    """True if the cell uses `torch.distributed`, or a framework on it: Lightning, Accelerate, transformers."""
    frameworks: tuple[str, ...] = ()
    pins: bool = False
    """True if the cell picks its device by its local rank, or uses a framework that does."""
    tf_cluster: bool = False
    """True if the cell uses TensorFlow's own strategy over several workers."""
    meets_here: bool = False
    """True if the cell, or a framework, has its workers find each other on the machine that they run on."""
    tf_servers: bool = False
    """True if the cell uses TensorFlow's own strategy with parameter servers."""

    @property
    def one_host(self) -> bool:
        """True if the workers find each other on one host only: TensorFlow or torch uses the loopback or files."""
        return self.meets_here and (self.tf_cluster or (self.torch_distributed and not self.elastic))
