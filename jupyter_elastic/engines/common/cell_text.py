"""Reads from a cell's text and captured names what engines need to know, without running anything.

An engine tells from that how well it fits a cell (`Claim`), and the kernel chooses an engine if none is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from jupyter_elastic.jobfiles.cell_hints import CellText
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


def facts(payload: Payload) -> frozenset[str]:
    """Return the dotted names that the cell uses; if the payload does not have them, those in its text."""
    return in_text(payload.source) if payload.uses is None else frozenset(payload.uses)


def read_cell(payload: Payload, library: tuple[str, ...] = ()) -> CellText:
    """Read the names that the payload uses, and the cell's text; nothing is unpickled. `library`: see `for_library`."""
    uses = facts(payload)
    parts = [name.split(".") for name in uses]
    words = {word for part in parts for word in part}
    # First names of modules; of our package and Horovod also the parts below: `horovod.torch`.
    modules = {word for part in parts for word in (part[:3] if part[0] in {"horovod", "jupyter_elastic"} else part[:1])}
    training = _use(uses, "jupyter_elastic.training")
    elastic = _use(uses, "jupyter_elastic.training.run")
    tf_cluster = not words.isdisjoint(_CLUSTER)
    torch_distributed = (
        _use(uses, "torch.distributed")
        or not modules.isdisjoint(_ON_TORCH_DISTRIBUTED)
        or not words.isdisjoint({"init_process_group", "DistributedDataParallel"})
        or any(part[0] == "transformers" and any("Trainer" in word for word in part) for part in parts)
    )
    text = "\n".join([payload.source, *uses])
    cell = CellText(
        elastic=elastic,
        forms_groups=training or elastic,
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
    return for_library(cell, uses, library)


def for_library(cell: CellText, uses: Iterable[str], library: tuple[str, ...]) -> CellText:
    """Return the hints for the engine of this library, which are the module and its displayed name."""
    by_library = [part for part in (name.split(".") for name in uses) if not {*part[:2]}.isdisjoint(library)]
    return replace(
        cell,
        elastic=cell.elastic or any("elastic" in part for part in by_library),
        forms_groups=cell.forms_groups or bool(by_library),
        library=any(_use(uses, name) for name in library[:1]),
    )


def _use(uses: Iterable[str], name: str) -> bool:
    return any(used == name or used.startswith(f"{name}.") for used in uses)
