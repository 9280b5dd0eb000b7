"""Which process of a cluster is what: TensorFlow's names for the roles, and each one's `TF_CONFIG`. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, convert

from jupyter_elastic.types import SlotId

COORDINATOR: SlotId = "coordinator"
"""The place of the coordinator among the slots of a cluster: it runs the cell, computes little, and holds no slot."""

Role: TypeAlias = Literal["chief", "worker", "ps"]
"""As TensorFlow calls them: `chief` is the coordinator, `ps` a parameter server."""


class Cluster(Struct, frozen=True):
    """The processes of one generation, by rank: the coordinator, then the workers, then the servers."""

    slots: tuple[SlotId, ...]
    """Their places."""
    servers: int
    """How many of them, at the end, are servers."""
    ports: tuple[int, ...]
    """Where each listens."""

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return len(self.slots) - 1 - self.servers

    def role(self, slot: SlotId) -> tuple[Role, int]:
        """What the process on this slot is, and its number among those of its role."""
        rank = self.slots.index(slot)
        if rank == 0:
            return "chief", 0
        return ("worker", rank - 1) if rank <= self.workers else ("ps", rank - 1 - self.workers)

    def tf_config(self, slot: SlotId, host: str) -> str:
        """`TF_CONFIG` of the process on this slot."""
        role, index = self.role(slot)
        cluster: dict[str, list[str]] = {"chief": [], "worker": [], "ps": []}
        for other, port in zip(self.slots, self.ports, strict=True):
            cluster[self.role(other)[0]].append(f"{host}:{port}")
        return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


class Task(Struct, frozen=True):
    """A process's own place in a cluster."""

    type: Role
    index: int


def task(tf_config: str) -> tuple[Task, str]:
    """Whose `TF_CONFIG` this is, and where that process listens; as `Cluster.tf_config` gives it."""
    found = json.loads(tf_config)
    own = convert(found["task"], Task)
    return own, found["cluster"][own.type][own.index]


def changed(before: Sequence[SlotId], servers_before: int, slots: Sequence[SlotId], servers: int) -> bool:
    """Whether a command wants other processes than those that there are."""

    def split(given: Sequence[SlotId], count: int) -> tuple[frozenset[SlotId], frozenset[SlotId]]:
        cut = len(given) - count
        return frozenset(given[:cut]), frozenset(given[cut:])

    return split(before, servers_before) != split(slots, servers)
