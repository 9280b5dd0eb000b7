"""A process group: the workers that train together, as `training` uses it, whichever engine forms it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_Result = TypeVar("_Result")


class PeerLost(Exception):
    """A member of the group is gone: the others go back to the last commit and form another group."""


class MembershipChanged(BaseException):
    """All members regroup now, and lose nothing. No `Exception`, so that a cell's own handlers let it through."""


class Overtaken(BaseException):
    """The other members have finished this training. No `Exception`, as above."""


class Group(Protocol):
    """The collectives that a training needs. All members make the same calls in the same order.

    A member that dies makes them raise `PeerLost`, or an error that `Groups.peer_lost` knows.
    """

    @property
    def elastic(self) -> bool:
        """True if the members can change."""
        ...

    @property
    def shards(self) -> bool:
        """True for torch.distributed's own group, over which a model can be sharded."""
        ...

    @property
    def provisional(self) -> bool:
        """True while this worker is in a world of its own, before it joins; rank and size are the reserved ones."""
        ...

    def join(self) -> None:
        """Become a member, or a provisional one; return when the group stands. Does nothing for a member."""
        ...

    def enter(self) -> None:
        """Begin the training: a provisional member joins the others, and stays provisional if they are past it."""
        ...

    def leave(self) -> None:
        """Leave the group; `join` comes next."""
        ...

    def synced(self) -> None:
        """Record that this worker has the state of the training now: joining workers can take the state from it."""
        ...

    def lost(self) -> None:
        """Record that a member is gone, and this one is about to leave: no other may go on waiting for it."""
        ...

    def require_whole(self) -> None:
        """Raise `PeerLost` if a member is gone: collectives on GPUs go on beside the process, and have raised nothing.

        Their results may be worthless, so `commit` calls this before it keeps a commit.
        """
        ...

    def change_wanted(self) -> bool:
        """Return True if this worker was told that the members are to change."""
        ...

    def rank(self) -> int:
        """Return this worker's rank, from 0."""
        ...

    def size(self) -> int:
        """Return the number of members."""
        ...

    def broadcast(self, data: bytes) -> bytes:
        """Return rank 0's `data` on every member."""
        ...

    def total(self, values: Array) -> Array:
        """Return the sum over all members of an array on the host, of any shape; all pass the same shape and type."""
        ...

    def allreduce(self, tensors: Sequence[Any], *, name: str, mean: bool = False) -> list[Any]:
        """Return each tensor's sum (or mean) over all members; may overwrite them.

        The tensors are dense, of the framework for which the group was made, of the same shapes and types on all
        members, on any device. `name` is the same on all members and differs between calls that can overlap.
        """
        ...

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """Send `parts[i]` to rank i; return each rank's part for this one. All members call it, mostly without data."""
        ...

    def wrap(self, model: Any, **options: Any) -> Any:
        """Return the model, or one that calls it and adds its gradients up during `backward` (see `training.wrap`)."""
        ...


class Groups(Protocol):
    """An engine's groups for `training` in a worker."""

    def group(self, framework: str | None) -> Group:
        """Return the group for a framework's tensors: `torch`, `tensorflow`, or None for any."""
        ...

    def formed(self) -> Group | None:
        """Return the group that the cell has formed itself, by the engine's own functions; None if there is none."""
        ...

    def peer_lost(self, error: BaseException) -> PeerLost | None:
        """Return the error to raise instead if a collective failed with `error` because a member is gone; else None."""
        ...


class SingleProcess:
    """A group of one: no engine, or an engine whose workers don't know each other."""

    elastic = False
    shards = False
    provisional = False

    def join(self) -> None:
        """Do nothing: there is no member to wait for."""

    def enter(self) -> None:
        """Do nothing: there is no member to join."""

    def leave(self) -> None:
        """Do nothing: there is no group to leave."""

    def synced(self) -> None:
        """Do nothing: no worker joins."""

    def lost(self) -> None:
        """Do nothing: no worker waits."""

    def require_whole(self) -> None:
        """Do nothing: no member can be lost."""

    def change_wanted(self) -> bool:
        """Return False."""
        return False

    def rank(self) -> int:
        """Return 0."""
        return 0

    def size(self) -> int:
        """Return 1."""
        return 1

    def broadcast(self, data: bytes) -> bytes:
        """Return `data` itself."""
        return data

    def total(self, values: Array) -> Array:
        """Return `values` itself."""
        return values

    def allreduce(self, tensors: Sequence[Any], *, name: str, mean: bool = False) -> list[Any]:  # noqa: ARG002
        """Return the tensors themselves."""
        return list(tensors)

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """Return `parts` themselves."""
        return list(parts)

    def wrap(self, model: Any, **options: Any) -> Any:  # noqa: ARG002
        """Return the model itself."""
        return model


def translated(call: Callable[[], _Result], peer_lost: Callable[[BaseException], PeerLost | None]) -> _Result:
    """Call, and raise `PeerLost` for any error that means a lost member."""
    try:
        return call()
    except Exception as error:
        lost = peer_lost(error)
        try:
            if lost is None or lost is error:
                raise
            raise lost from error
        finally:
            del lost  # else it and this frame hold each other, and the frames of `error` hold the broken group
