"""Reads off a cell's text and captured names what engines want to know of it, without running anything."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jupyter_elastic.jobfiles.payload import Payload

# Compiled once, before drivers are forked.
_ELASTIC = re.compile(r"\belastic\b")
_RUN = re.compile(r"\brun\b")
_TENSORFLOW = re.compile(r"\b(tensorflow|keras|tf_keras)\b")
_TORCH = re.compile(r"\b(torch|lightning|pytorch_lightning|accelerate|transformers)\b")
_BY_LOCAL_RANK = re.compile(
    rb"local_rank|LOCAL_RANK|torch\.distributed|torch import distributed|\b(lightning|pytorch_lightning|accelerate)\b"
)
_TRAINER = re.compile(rb"\btransformers\b")


@dataclass(frozen=True)
class Cell:
    """What a cell's text and its captured names hint at. Hints only: workers say what is so."""

    elastic: bool = False
    """It can regroup: it uses Horovod's elastic API or our `training.run`."""
    forms_groups: bool = False
    """It forms a process group."""
    frameworks: tuple[str, ...] = ()
    pins: bool = False
    """It picks its device by its local rank, or uses a framework that does."""
    tf_cluster: bool = False
    """It uses TensorFlow's own strategy over several workers."""


def read_cell(payload: Payload, library: tuple[str, ...] = ()) -> Cell:
    """Look at the payload's text and at the bytes of its names; nothing is unpickled."""
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
    pins = any(
        _BY_LOCAL_RANK.search(text) or (_TRAINER.search(text) and b"Trainer" in text)
        for text in (source.encode(), names)
    )
    return Cell(elastic=elastic, forms_groups=forms_groups, frameworks=tuple(found), pins=pins, tf_cluster=tf_cluster)
