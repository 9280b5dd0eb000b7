"""Assigns roles to the processes of a cluster: TensorFlow's names for them, and each one's `TF_CONFIG`. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, convert

from jupyter_elastic.types import SlotId

COORDINATOR: SlotId = "coordinator"
"""The coordinator's pseudo-slot among the slots of a cluster: it runs the cell, computes little, and holds no slot."""

Role: TypeAlias = Literal["chief", "worker", "ps"]
"""TensorFlow's names: `chief` is the coordinator, `ps` a parameter server."""


class Cluster(Struct, frozen=True):
    """The processes of one generation, by rank: the coordinator, then the workers, then the servers."""

    slots: tuple[SlotId, ...]
    servers: int
    """Number of servers, at the end of `slots`."""
    ports: tuple[int, ...]
    """Port at which each process listens."""

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.slots) - 1 - self.servers

    def role(self, slot: SlotId) -> tuple[Role, int]:
        """Return the role of the process on this slot, and its number among those of its role."""
        rank = self.slots.index(slot)
        if rank == 0:
            return "chief", 0
        return ("worker", rank - 1) if rank <= self.workers else ("ps", rank - 1 - self.workers)

    def tf_config(self, slot: SlotId, host: str) -> str:
        """Return `TF_CONFIG` of the process on this slot."""
        role, index = self.role(slot)
        cluster: dict[str, list[str]] = {"chief": [], "worker": [], "ps": []}
        for other, port in zip(self.slots, self.ports, strict=True):
            cluster[self.role(other)[0]].append(f"{host}:{port}")
        return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


class ClusterTask(Struct, frozen=True):
    """A process's role in a cluster, and its number."""

    type: Role
    index: int


def task(tf_config: str) -> tuple[ClusterTask, str]:
    """Return the process whose `TF_CONFIG` this is, and its address; as `Cluster.tf_config` gives it."""
    found = json.loads(tf_config)
    own = convert(found["task"], ClusterTask)
    return own, found["cluster"][own.type][own.index]


def changed(before: Sequence[SlotId], servers_before: int, slots: Sequence[SlotId], servers: int) -> bool:
    """Return True if a command wants other processes than the present ones."""

    def split(given: Sequence[SlotId], count: int) -> tuple[frozenset[SlotId], frozenset[SlotId]]:
        cut = len(given) - count
        return frozenset(given[:cut]), frozenset(given[cut:])

    return split(before, servers_before) != split(slots, servers)
