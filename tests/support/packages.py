"""Cells packaged against a notebook's names, and run as a worker does."""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_elastic.jobfiles.payload import Payload, restore_namespace
from jupyter_elastic.kernel import capture


def notebook(source: str) -> dict[str, Any]:
    """The names of a notebook in which this text was run: its functions and classes belong to `__main__`."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(source, namespace)
    return namespace


def pack(cell: str, namespace: dict[str, Any], **how: Any) -> capture.Package:
    return capture.package(cell, namespace, filename="<In[1]>", first_line=2, **how)


def arrived(package: capture.Package) -> Payload:
    """The payload as a worker reads it, from bytes alone."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(package.payload), type=Payload)


def run(package: capture.Package) -> dict[str, Any]:
    """The namespace after the cell was run in it."""
    payload = arrived(package)
    namespace = restore_namespace(payload)
    exec(compile(payload.source, payload.filename, "exec"), namespace)
    return namespace
