"""A state whose objects are sharded over the group (PyTorch's FSDP2): made anew in each group, loaded from shards.

Its commit is a blob like any other's, with stand-ins for the sharded tensors, and a folder into which each member
writes its shards (PyTorch's distributed checkpoint), whatever the number of members that read them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Placement, empty

from jupyter_elastic.training import link
from jupyter_elastic.training.context import context
from jupyter_elastic.training.frameworks.torch import Stateful, mapped
from jupyter_elastic.training.frameworks.torch_gradients import is_sharded
from jupyter_elastic.training.group import Group, SingleProcess
from jupyter_elastic.training.ranks import collective
from jupyter_elastic.types.errors import BadRequest, EngineError

_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""`reduce_scatter_single`, which is named `reduce_scatter_tensor` before PyTorch 2.13."""
_meshes = itertools.count()


@dataclass
class StandIn:
    """Stands for a sharded tensor in a commit's blob."""

    name: str
    """Name of the tensor in the folder of shards."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    placements: Sequence[Placement]


class Factory:
    """The objects of a state that `make` returns, and the folder with the shards of their last commit."""

    def __init__(self, make: Callable[[DeviceMesh], dict[str, Any]]) -> None:
        if not callable(make):
            raise BadRequest(
                f"training.State(factory=...) takes a function that makes model and optimizer anew, not "
                f"{type(make).__name__}: factory=make, without calling it."
            )
        if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
            raise BadRequest(
                f"training.State(factory=...) needs a newer PyTorch than {torch.__version__}, whose FSDP2 can't weigh "
                "gradients (FSDPModule.set_custom_reduce_scatter)."
            )
        self._make = make
        self._mesh: DeviceMesh | None = None
        self.folder: Path | None = None
        """Folder with the shards of the last commit; None before the first."""

    def build(self, seed: int) -> dict[str, Stateful]:
        """Make the objects for the present group; with one `seed` all members begin with the same weights.

        Raises:
            BadRequest: There is no group to shard over, or it returns something else than sharded objects by name.
        """
        everywhere = os.environ.get("WORLD_SIZE")
        if os.environ.get("LOCAL_WORLD_SIZE", everywhere) != everywhere:
            raise BadRequest(
                "The workers of a training.State(factory=...) write its commit into one folder, and this job's are on "
                "several hosts. Ask for as many slots as one host has, or keep the others from it: jupyter elastic "
                "host drain HOST."
            )
        mesh = self._mesh = _new_mesh()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made = self._make(mesh)
        if not isinstance(made, dict) or not made or not all(isinstance(name, str) for name in made):
            raise BadRequest(
                "The factory of a training.State returns its objects by name, as "
                f'`{{"model": model, "optimizer": optimizer}}`, not {type(made).__name__}.'
            )
        for name, value in made.items():
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise BadRequest(
                    f"The factory of a training.State returns {type(value).__name__} as {name!r}. It makes modules, "
                    "optimizers and schedulers of PyTorch; plain values are given to training.State beside it."
                )
        _check_sharding(made, mesh)
        return {name: Stateful(value) for name, value in made.items()}

    def drop(self) -> None:
        """Drop the mesh of a group that is over: PyTorch's caches keep it, and with it all its connections."""
        getattr(self._mesh, "_pg_registry", {}).clear()
        self._mesh = None

    def save(self, captured: Any) -> Any:
        """Write this member's shards, together with all members; return the tree with stand-ins for them."""
        shards: dict[str, DTensor] = {}

        def stand_in(leaf: Any) -> Any:
            if not isinstance(leaf, DTensor):
                return leaf
            name = str(len(shards))
            shards[name] = leaf
            return StandIn(name, tuple(leaf.shape), leaf.dtype, leaf.placements)

        tree = mapped(stand_in, captured)
        try:
            self.folder = _written(shards, disk=False)
        except CheckpointException:  # no or full shared memory: the disk is slower and as good
            try:
                self.folder = _written(shards, disk=True)
            except CheckpointException as problem:
                raise EngineError(f"the shards of a commit can't be written: {problem}") from problem
        return tree

    def load(self, captured: Any) -> Any:
        """Return the tree with the sharded tensors of the last commit, as the present group shards them."""
        if self.folder is None:
            return captured
        shards: dict[str, DTensor] = {}

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, StandIn):
                return leaf
            tensor = empty(leaf.shape, dtype=leaf.dtype, device_mesh=self._mesh, placements=leaf.placements)
            shards[leaf.name] = tensor
            return tensor

        tree = mapped(place, captured)
        reader = checkpoint.FileSystemReader(self.folder)
        try:
            collective(lambda: checkpoint.load(shards, storage_reader=reader))
        except CheckpointException as problem:
            raise EngineError(f"the shards of the last commit can't be read: {problem}") from problem
        return tree


def required(group: Group | None) -> tuple[Group, link.JobLink]:
    """Return the group and the job; BadRequest if FSDP can't shard over this group."""
    if group is None or not group.shards or link.current is None:
        engine = "no group" if isinstance(group, SingleProcess) else "a group that is not torch.distributed's"
        raise BadRequest(
            f"training.State(factory=...) shards over the group of the engine 'torch', and here is {engine}: run the "
            "cell under `%%distribute --engine torch`."
        )
    return group, link.current


def seed() -> int:
    """Return the seed with which all members make their objects."""
    return int(torch.initial_seed())


class _Weighted:
    """FSDP's reduce-scatter, of gradients weighed by each member's share of the batch: the sum is the global one."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        del op  # a mean, of equal shares
        input_tensor.mul_(context.weight)
        return _reduce_scatter(output_tensor, input_tensor, group=group, async_op=async_op)


def _new_mesh() -> DeviceMesh:
    """Return a mesh of all members of the present group in a row.

    PyTorch takes meshes of the same members and names for the same one, and its cache of a mesh holds this process's
    rank in it. In another group that may be another rank: so no two groups' meshes have the same name.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and torch.cuda.device_count() == 1:
        torch.cuda.init()  # else the mesh takes the GPU of the local rank, and this worker sees its own one only
    return init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=(f"workers_{next(_meshes)}",))


def _check_sharding(made: dict[str, Any], mesh: DeviceMesh) -> None:
    """Refuse objects that are not sharded over exactly the whole group; have gradients weighed."""
    models = [value for value in made.values() if isinstance(value, torch.nn.Module)]
    units = [module for model in models for module in model.modules() if isinstance(module, FSDPModule)]
    if not units:
        raise BadRequest(
            "The factory of a training.State returns no model that is sharded: it calls "
            "torch.distributed.fsdp.fully_shard(model, mesh=mesh), with the mesh that it is given, before it makes the "
            "optimizer. For a model that each worker holds whole, training.State(model=model, optimizer=optimizer)."
        )
    if any(p.device_mesh != mesh for model in models for p in model.parameters() if is_sharded(p)):
        raise BadRequest(
            "The factory of a training.State shards over another mesh than the one that it is given: "
            "fully_shard(model, mesh=mesh). Only that one is new in each group and has all its workers."
        )
    for unit in units:
        unit.set_gradient_divide_factor(1.0)
        unit.set_custom_reduce_scatter(_Weighted())


def _written(shards: dict[str, DTensor], *, disk: bool) -> Path:
    """Return the folder that all members have written into; CheckpointException on all of them if one could not."""
    group, job = required(context.group)
    name = os.fsencode(job.new_shards(disk=disk)) if group.rank() == 0 else b""
    folder = Path(os.fsdecode(collective(lambda: group.broadcast(name))))
    writer = checkpoint.FileSystemWriter(folder, sync_files=False)
    collective(lambda: checkpoint.save(shards, storage_writer=writer))
    return folder
