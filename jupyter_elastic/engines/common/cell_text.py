"""Reads from a cell's text and captured names what engines need to know, without running anything.

An engine tells from that how well it fits a cell (`Claim`), and the kernel chooses an engine if none is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from jupyter_elastic.jobfiles.names_used import in_text
from jupyter_elastic.jobfiles.payload import Payload

# Compiled once, before drivers are forked.
_BY_LOCAL_RANK = re.compile(r"local_rank|LOCAL_RANK")
_MEETS_HERE = re.compile(
    r"""MASTER_ADDR["']?\]?\s*=(?!=)|setdefault\(\s*["']MASTER_ADDR|localhost|127\.0\.0\.1|FileStore|HashStore"""
    r"""|file://|tcp://|\bspawn\(|\b(lightning|pytorch_lightning)\b"""
)
"""Code that forms a group on one host. Lightning wants equal numbers on all; processes of a cell are on its own."""
_TENSORFLOW = {"tensorflow", "keras", "tf_keras"}
_ON_TORCH_DISTRIBUTED = {"lightning", "pytorch_lightning", "accelerate"}
_TORCH = {"torch", "transformers", *_ON_TORCH_DISTRIBUTED}
_CLUSTER = {"MultiWorkerMirroredStrategy", "CollectiveAllReduceStrategy"}
"""TensorFlow's public name of its strategy, and the name of its class."""


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


@dataclass(frozen=True)
class CellText:
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


def facts(payload: Payload) -> frozenset[str]:
    """Return the dotted names that the cell uses; if the payload does not have them, those in its text."""
    return in_text(payload.source) if payload.uses is None else frozenset(payload.uses)


def read_cell(payload: Payload, library: tuple[str, ...] = ()) -> CellText:
    """Read the names that the payload uses, and the cell's text; nothing is unpickled.

    `library` is the engine's own: the module, and its displayed name.
    """
    uses = facts(payload)
    parts = [name.split(".") for name in uses]
    words = {word for part in parts for word in part}
    # First names of modules; of our package and Horovod also the parts below: `horovod.torch`.
    modules = {word for part in parts for word in (part[:3] if part[0] in {"horovod", "jupyter_elastic"} else part[:1])}
    by_library = [part for part in parts if not {*part[:2]}.isdisjoint(library)]
    training = _use(uses, "jupyter_elastic.training")
    elastic = _use(uses, "jupyter_elastic.training.run") or any("elastic" in part for part in by_library)
    tf_cluster = not words.isdisjoint(_CLUSTER)
    torch_distributed = (
        _use(uses, "torch.distributed")
        or not modules.isdisjoint(_ON_TORCH_DISTRIBUTED)
        or not words.isdisjoint({"init_process_group", "DistributedDataParallel"})
        or any(part[0] == "transformers" and any("Trainer" in word for word in part) for part in parts)
    )
    text = "\n".join([payload.source, *uses])
    return CellText(
        elastic=elastic,
        forms_groups=training or elastic or bool(by_library),
        library=uses_library(payload, library),
        training=training,
        torch_distributed=torch_distributed,
        frameworks=tuple(
            name for name, of in (("tensorflow", _TENSORFLOW), ("torch", _TORCH)) if not modules.isdisjoint(of)
        ),
        pins=torch_distributed or bool(_BY_LOCAL_RANK.search(text)),
        tf_cluster=tf_cluster,
        meets_here=(tf_cluster or torch_distributed) and bool(_MEETS_HERE.search(text)),
        tf_servers=any(word.startswith("ParameterServerStrategy") for word in words),
    )


def uses_library(payload: Payload, library: tuple[str, ...]) -> bool:
    """Return True if the cell imports the first of these, or has captured something of it."""
    return any(_use(facts(payload), name) for name in library[:1])


def _use(uses: Iterable[str], name: str) -> bool:
    return any(used == name or used.startswith(f"{name}.") for used in uses)
