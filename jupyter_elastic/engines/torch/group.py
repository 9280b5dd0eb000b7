"""A `torch.distributed` process group as `training` uses it."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from jupyter_elastic.engines.common.group_worker import GroupWorker, WorkerGroup
from jupyter_elastic.engines.torch.messages import StoreAddress
from jupyter_elastic.engines.torch.store_client import GroupStore
from jupyter_elastic.platform.reachability import interface
from jupyter_elastic.protocol.worker_messages import Go
from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import Array, PeerLost
from jupyter_elastic.training.pace import pace
from jupyter_elastic.types.errors import EngineError

JOIN = dt.timedelta(seconds=20)
"""Time that members wait for each other to join: they come when they are ready to take a step."""
LARGE = 1024 * 1024
"""Bytes from which a tensor is worth a message of its own."""
NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # else its watchdog ends a process whose peer is gone
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",  # else it sleeps for a minute, for which the end of its group waits
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Environment variables that keep NCCL from watching its peers: the driver reports a lost one at once."""
LEAVE_S = 1.0
"""Seconds for which a group of NCCL lives after its abort: its watchdog, which the end of the group waits for while no
Python can run, may need Python once more, to tell the store of the error."""
JOINS = 3
"""Number of joins that may fail although no member has died; then the cause is not another member."""


c10d.BackendConfig(dist.Backend("gloo"))  # PyTorch 2.15 reads all entry points for it, in 16 to 36 ms: before a fork


class TorchGroup(WorkerGroup):
    """The default process group of `torch.distributed`, formed anew for each generation."""

    shards = True

    def __init__(self, worker: GroupWorker) -> None:
        super().__init__(worker)
        self._store: dist.Store | None = None  # a reference: C++ holds only the base of a store made in Python
        self._failed_joins = 0

    def connect(self, go: Go) -> None:
        """Connect to the other members."""
        address = self._worker.decoded(go, StoreAddress)
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface(address.address)
        try:
            self._initialize(GroupStore(address, JOIN), go.rank, go.size)
        except BaseException as problem:
            # A failed init leaves torch's counter of groups ahead of the other members', and the counter is in the
            # store's keys (pytorch #46561): the next join would wait for its whole time-out.
            c10d._world.group_count = 0
            if not isinstance(problem, RuntimeError):  # an interrupt
                raise
            self._failed_joins += not self._worker.channel.group_broken.is_set()
            if self._failed_joins >= JOINS:
                raise
            raise PeerLost(f"the group broke while it formed: {problem}") from problem
        self._failed_joins = 0
        getattr(c10d, "set_timeout", c10d._set_pg_timeout)(dist.default_pg_timeout)  # public from PyTorch 2.15 on
        if self._worker.channel.group_broken.is_set():  # broken before all of the group's connections were known
            self._worker.sever()

    def connect_alone(self) -> None:
        """Form a group of one."""
        self._initialize(dist.HashStore(), 0, 1)

    def _initialize(self, store: dist.Store, rank: int, size: int) -> None:
        if dist.is_initialized():
            raise EngineError(
                "This cell has called torch.distributed.init_process_group() itself, and training.run forms the group: "
                "leave the call out."
            )
        self._store = store
        os.environ.update(NCCL)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=JOIN)

    def disconnect(self) -> None:
        """Leave the group, if there is one.

        Gloo ends in 10 ms for each connection; whoever drops the last reference pays that, so another thread does.
        """
        if self._worker.lost_a_peer:
            self._worker.sever()
        if dist.is_initialized():
            aborts = self._worker.lost_a_peer and bool(_by_nccl())
            groups = list(c10d._world.pg_map)
            kept = [*groups, *(backend for group in groups for backend in _backends(group)), self._store]
            del groups
            if aborts:
                c10d._abort_process_group()  # `destroy_process_group` would wait for collectives that never end
            else:
                dist.destroy_process_group()
            threading.Thread(
                target=_drop, args=(kept, LEAVE_S if aborts else 0.0), name="elastic-leave", daemon=True
            ).start()
        self._store = None

    def abort(self) -> None:
        """Interrupt NCCL, which does not notice that a member's connections are closed; from any thread.

        Torch still knows the groups afterwards: the cell may be about to begin a collective, which is to fail as one.
        """
        if not (nccl := _by_nccl()):
            return
        with contextlib.suppress(RuntimeError):
            nccl[0]._group_start()  # else the aborts of several groups would wait for each other (pytorch #119797)
            for backend in nccl:
                backend.abort()
            nccl[0]._group_end()

    def require_whole(self) -> None:
        """Raise `PeerLost` if a member is gone: a collective of NCCL that is broken off raises nothing."""
        if self._worker.channel.group_broken.is_set():
            raise PeerLost("a member of the group is gone")

    def rank(self) -> int:
        """Return this worker's rank."""
        return super().rank() if self._place is not None or not dist.is_initialized() else dist.get_rank()

    def size(self) -> int:
        """Return the number of members."""
        return super().size() if self._place is not None or not dist.is_initialized() else dist.get_world_size()

    def broadcast(self, data: bytes) -> bytes:
        """Return rank 0's `data` on every member."""
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        first = self.rank() == 0
        content = torch.empty(int(length), dtype=torch.uint8)
        if first:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(content, 0)
        return data if first else bytes(content.numpy().tobytes())

    def total(self, values: Array) -> Array:
        """Return the sum over all members."""
        tensor = torch.from_numpy(np.array(values))
        dist.all_reduce(tensor)
        summed: Array = tensor.numpy()
        return summed

    def allreduce(self, tensors: Sequence[Any], *, name: str, mean: bool = False) -> list[Any]:  # noqa: ARG002
        """Return each tensor's sum or mean over all members; the small ones of a type and device go in one message.

        Large ones are reduced where they lie: memory for all of them, new in each step, costs more than the all-reduce.
        """
        result: list[Any] = list(tensors)
        by_kind: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for index, tensor in enumerate(tensors):
            if tensor.nbytes >= LARGE and tensor.is_contiguous():
                _reduce(tensor, mean=mean)
            else:
                by_kind.setdefault((tensor.dtype, tensor.device), []).append(index)
        for indices in by_kind.values():
            flat = torch.cat([result[index].reshape(-1) for index in indices])
            _reduce(flat, mean=mean)
            for index, piece in zip(indices, flat.split([result[index].numel() for index in indices]), strict=True):
                result[index] = piece.view_as(result[index])
        return result

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """Send each rank its part, and return the parts received."""
        lengths: Array = np.zeros((len(parts), len(parts)), dtype=np.int64)
        lengths[self.rank()] = [len(part) for part in parts]
        lengths = self.total(lengths)
        mine = lengths[:, self.rank()].tolist()
        given = torch.from_numpy(np.frombuffer(b"".join(parts), dtype=np.uint8).copy())
        taken = torch.empty(sum(mine), dtype=torch.uint8)
        dist.all_to_all_single(taken, given, mine, lengths[self.rank()].tolist())
        return [bytes(part.numpy().tobytes()) for part in taken.split(mine)]

    def wrap(self, model: Any, **options: Any) -> Any:
        """Wrap the model in a `DistributedDataParallel` of this group; all have the same weights, so none are sent."""
        return _Overlapping(model, **{"init_sync": False, **options})


class _Overlapping(DistributedDataParallel):
    """Adds gradients up by each rank's share of the batch; the optimizer's hook does it for a share in pieces."""

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        if not options.keys() & {"broadcast_buffers", "forward_sync_buffers"}:
            self.broadcast_buffers = False  # else an evaluation of unequal shares would wait for rank 0's buffers
        self.register_comm_hook(None, lambda _, bucket: _add_up(bucket))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's `forward`."""
        pieces = context.micro_batch is not None and not context.micro_batch.only
        with self.no_sync() if pieces else contextlib.nullcontext():
            return super().forward(*args, **kwargs)


def _reduce(tensor: torch.Tensor, *, mean: bool) -> None:
    dist.all_reduce(tensor)
    if mean:
        tensor /= dist.get_world_size()


def _add_up(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    pace.mark()
    gradients = bucket.buffer().mul_(context.weight)
    context.added_up.update(bucket.parameters())
    future: torch.futures.Future[Any] = dist.all_reduce(gradients, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def _by_nccl() -> list[Any]:
    """Return NCCL's halves of all groups, the newest first."""
    if not (dist.is_available() and dist.is_nccl_available()):
        return []
    groups = list(c10d._world.pg_map)[::-1]
    return [part for group in groups for part in _backends(group) if isinstance(part, dist.ProcessGroupNCCL)]


def _drop(kept: list[Any], after_s: float) -> None:
    time.sleep(after_s)
    kept.clear()


def _backends(group: Any) -> Iterator[Any]:
    for device in group._device_types:
        yield group._get_backend(device)
