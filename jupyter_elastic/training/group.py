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
    """The other members are through with this training already. No `Exception`, as above."""


class Group(Protocol):
    """The collectives that a training needs. All members make the same calls in the same order.

    A member that dies makes them raise `PeerLost`, or an error that `Groups.peer_lost` knows.
    """

    @property
    def elastic(self) -> bool:
        """Whether its members can change."""
        ...

    @property
    def shards(self) -> bool:
        """Whether it is torch.distributed's own group, over which a model can be sharded."""
        ...

    @property
    def provisional(self) -> bool:
        """Whether this worker is a newcomer in a world of its own still; rank and size are those it is promised."""
        ...

    def join(self) -> None:
        """Become a member, or a provisional one; returns when the group stands. Nothing to do for a member."""
        ...

    def enter(self) -> None:
        """The training begins: a provisional member joins the others, and stays one where they are past it."""
        ...

    def leave(self) -> None:
        """Leave the group; `join` comes next."""
        ...

    def synced(self) -> None:
        """This worker has the state of the training now: whoever joins can take it from here."""
        ...

    def lost(self) -> None:
        """A member is gone, and this one is about to leave: no other may go on waiting for it."""
        ...

    def require_whole(self) -> None:
        """Raise `PeerLost` if a member is gone: collectives on GPUs go on beside the process, and have raised nothing.

        What they gave by then may be worth nothing, so it is asked before a commit is kept.
        """
        ...

    def change_wanted(self) -> bool:
        """Whether this worker was told that the members are to change."""
        ...

    def rank(self) -> int:
        """This worker's number, from 0."""
        ...

    def size(self) -> int:
        """Members."""
        ...

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's `data`, everywhere."""
        ...

    def total(self, values: Array) -> Array:
        """The sum over all members of an array on the host, of any shape; all give the same shape and type."""
        ...

    def allreduce(self, tensors: Sequence[Any], *, name: str, mean: bool = False) -> list[Any]:
        """Each tensor's sum (or mean) over all members; may overwrite them.

        They are dense tensors of the framework for which the group was made, of the same shapes and types on all
        members, on whatever device. `name` is the same on all members and differs between calls that can overlap.
        """
        ...

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """Send `parts[i]` to rank i; what each rank has sent here. All members call it, most with empty parts."""
        ...

    def wrap(self, model: Any, **options: Any) -> Any:
        """The model, or one that calls it and adds its gradients up during `backward` (see `training.wrap`)."""
        ...


class Groups(Protocol):
    """What an engine offers to `training` in a worker."""

    def group(self, framework: str | None) -> Group:
        """The group by a framework's tensors: `torch`, `tensorflow`, or None for whichever is there."""
        ...

    def formed(self) -> Group | None:
        """The group that the cell has formed itself, by the engine's own functions; None where there is none."""
        ...

    def peer_lost(self, error: BaseException) -> PeerLost | None:
        """The error to raise instead when a collective failed with `error` because a member is gone; else None."""
        ...


class SingleProcess:
    """A group of one: no engine, or an engine whose workers don't know each other."""

    elastic = False
    shards = False
    provisional = False

    def join(self) -> None:
        """Nobody to wait for."""

    def enter(self) -> None:
        """Nobody to join."""

    def leave(self) -> None:
        """Nothing to leave."""

    def synced(self) -> None:
        """Nobody joins."""

    def lost(self) -> None:
        """Nobody waits."""

    def require_whole(self) -> None:
        """Nobody can be lost."""

    def change_wanted(self) -> bool:
        """Never."""
        return False

    def rank(self) -> int:
        """Always 0."""
        return 0

    def size(self) -> int:
        """Always 1."""
        return 1

    def broadcast(self, data: bytes) -> bytes:
        """`data` itself."""
        return data

    def total(self, values: Array) -> Array:
        """`values` itself."""
        return values

    def allreduce(self, tensors: Sequence[Any], *, name: str, mean: bool = False) -> list[Any]:  # noqa: ARG002
        """The tensors themselves."""
        return list(tensors)

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """`parts` themselves."""
        return list(parts)

    def wrap(self, model: Any, **options: Any) -> Any:  # noqa: ARG002
        """The model itself."""
        return model


def translated(call: Callable[[], _Result], peer_lost: Callable[[BaseException], PeerLost | None]) -> _Result:
    """Call, and raise `PeerLost` for any error that says that a member is gone."""
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
