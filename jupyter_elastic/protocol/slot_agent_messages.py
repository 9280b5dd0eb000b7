"""Defines a worker's request to the machine's slot agent: access to the device of its job's leased slot. Pure."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from jupyter_elastic.protocol.framing import Frames
from jupyter_elastic.types import JobId, SlotId
from jupyter_elastic.types.vocabulary import Count

SOCKET = "/run/elastic-slot-agent/agent.sock"
VARIABLE = "JUPYTER_ELASTIC_SLOT_AGENT"
"""Environment variable with the path of another socket."""
MAX_MESSAGE = 4096


class Enter(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Run the requesting process, which the kernel identifies, and all its later children on this slot."""

    job: JobId
    attempt: Count
    slot: Annotated[SlotId, Meta(max_length=300)]


class DeviceGranted(Struct, frozen=True, tag="Entered", forbid_unknown_fields=True):
    """The worker may open the slot's device, and no other of the pool; or the reason why nothing changed."""

    problem: str = ""


ASKS: Frames[Enter] = Frames(Enter, "the slot agent", MAX_MESSAGE)
ANSWERS: Frames[DeviceGranted] = Frames(DeviceGranted, "the slot agent", MAX_MESSAGE)
