"""Reads off a cell's text and captured names what engines want to know of it, without running anything.

By that an engine says how well it fits a cell (`Claim`), and the kernel chooses one where none is named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from jupyter_elastic.jobfiles.payload import Payload

# Compiled once, before drivers are forked.
_ELASTIC = re.compile(r"\belastic\b")
_RUN = re.compile(r"\brun\b")
_TENSORFLOW = re.compile(r"\b(tensorflow|keras|tf_keras)\b")
_TORCH = re.compile(r"\b(torch|lightning|pytorch_lightning|accelerate|transformers)\b")
_BY_LOCAL_RANK = re.compile(rb"local_rank|LOCAL_RANK")
_TORCH_DISTRIBUTED = re.compile(
    rb"torch\.distributed|torch import distributed|init_process_group|DistributedDataParallel"
    rb"|\b(lightning|pytorch_lightning|accelerate)\b"
)
_ON_TORCH_DISTRIBUTED = (b"distributed", b"init_process_group", b"DistributedDataParallel", b"lightning", b"accelerate")
"""One of them is in all that the expression finds; captured names can be hundreds of megabytes."""
_MEETS_HERE = re.compile(
    rb"""MASTER_ADDR["']?\]?\s*=(?!=)|setdefault\(\s*["']MASTER_ADDR|localhost|127\.0\.0\.1|FileStore|HashStore"""
    rb"""|file://|tcp://|\bspawn\(|\b(lightning|pytorch_lightning)\b"""
)
"""Lightning wants the same number of workers on each host; processes that a cell starts are on its own."""
_TRANSFORMERS = re.compile(rb"\btransformers\b")


class Fit(IntEnum):
    """How well an engine fits a cell."""

    ANY = 0
    """It runs the cell as it runs any."""
    CAN = 1
    """It forms groups that the cell can use."""
    GOOD = 2
    """The same, and it is to be preferred to others that can."""
    OWN = 3
    """The cell uses the engine's own library."""


class Claim(NamedTuple):
    """What an engine says of a cell. The highest fit is chosen; of two that are equal, the engine first by name."""

    fit: Fit
    why: str
    """`the cell uses training`."""
    only: bool = False
    """On another engine each worker would train alone, and nothing would say so."""


@dataclass(frozen=True)
class Cell:
    """What a cell's text and its captured names hint at. Hints only: workers say what is so."""

    elastic: bool = False
    """It can regroup: it uses Horovod's elastic API or our `training.run`."""
    forms_groups: bool = False
    """It forms a process group."""
    library: bool = False
    """It imports the engine's own library, or has captured something of it."""
    training: bool = False
    """It uses this package's `training`."""
    torch_distributed: bool = False
    """It uses `torch.distributed`, or a framework on it: Lightning, Accelerate, transformers' `Trainer`."""
    frameworks: tuple[str, ...] = ()
    pins: bool = False
    """It picks its device by its local rank, or uses a framework that does."""
    tf_cluster: bool = False
    """It uses TensorFlow's own strategy over several workers."""
    meets_here: bool = False
    """It says by itself that its workers find each other on the machine that they run on, or a framework does."""
    tf_servers: bool = False
    """It uses TensorFlow's own strategy with parameter servers."""

    @property
    def one_host(self) -> bool:
        """Its workers find each other on one host only: TensorFlow or torch forms their group, by loopback or files."""
        return self.meets_here and (self.tf_cluster or (self.torch_distributed and not self.elastic))


def read_cell(payload: Payload, library: tuple[str, ...] = ()) -> Cell:
    """Look at the payload's text and at the bytes of its names; nothing is unpickled.

    `library` is the engine's own: the module, and what people call it.
    """
    source, names = payload.source, payload.names
    by_name = any(name.encode() in names for name in library[:1])
    ours = "jupyter_elastic" in source or b"jupyter_elastic" in names
    elastic = (
        b"jupyter_elastic" in names
        or ("jupyter_elastic" in source and bool(_RUN.search(source)))
        or bool(_ELASTIC.search(source))
        or (by_name and b"elastic" in names)
    )
    forms_groups = ours or elastic or by_name or any(name in source for name in library)
    found: list[str] = []
    if _TENSORFLOW.search(source) or b"tensorflow" in names or b"keras" in names:
        found.append("tensorflow")
    if _TORCH.search(source) or b"torch" in names:
        found.append("torch")
    tf_cluster = "MultiWorkerMirroredStrategy" in source or b"MultiWorkerMirroredStrategy" in names
    both = (source.encode(), names)
    torch_distributed = any(
        (any(word in text for word in _ON_TORCH_DISTRIBUTED) and _TORCH_DISTRIBUTED.search(text))
        or (b"Trainer" in text and _TRANSFORMERS.search(text))
        for text in both
    )
    return Cell(
        elastic=elastic,
        forms_groups=forms_groups,
        library=uses_library(payload, library),
        training=ours,
        torch_distributed=torch_distributed,
        frameworks=tuple(found),
        pins=torch_distributed or any(_BY_LOCAL_RANK.search(text) for text in both),
        tf_cluster=tf_cluster,
        meets_here=(tf_cluster or torch_distributed) and any(map(_MEETS_HERE.search, both)),
        tf_servers=b"ParameterServerStrategy" in names or "ParameterServerStrategy" in source,
    )


def uses_library(payload: Payload, library: tuple[str, ...]) -> bool:
    """Whether the cell imports the first of these, or has captured something of it."""
    return any(
        name.encode() in payload.names or re.search(rf"(?m)^\s*(?:from|import)\s.*\b{name}\b", payload.source)
        for name in library[:1]
    )
