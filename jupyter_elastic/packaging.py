"""From a cell to a job folder: what travels to the workers, found out without running anything.

Knows syntax trees, cloudpickle and the job folder; must not know IPython, sockets or the daemon.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

SOURCE = "cell.py"
PAYLOAD = "payload.msgpack"


class Payload(Struct, frozen=True, kw_only=True):
    """All that a worker needs to run the cell; written as `payload.msgpack` into the job's folder."""

    source: str
    """The cell's Python text, IPython lines already turned into Python."""
    filename: str
    """The name in tracebacks: `<In[5]>`."""
    first_line: int
    """Line number, in the cell, of the first line of `source` (the magic stands above it)."""
    names: bytes
    """cloudpickle of a dict: captured name -> value."""
    out: tuple[str, ...] = ()
    """Names whose values come back."""
    env: dict[str, str] = {}
    """Environment variables to set before anything is imported."""
    sys_path: tuple[str, ...] = ()
    workdir: str = ""


def encode(payload: Payload) -> bytes:
    """The bytes of `payload.msgpack`."""
    return msgspec.msgpack.encode(payload)


def decode(data: bytes) -> Payload:
    """A payload read back; msgspec.DecodeError for anything else."""
    return msgspec.msgpack.decode(data, type=Payload)
