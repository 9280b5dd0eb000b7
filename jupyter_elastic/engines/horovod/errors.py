"""Finds errors that mean a lost member of a Horovod group, and turns them into one that both elastic loops catch."""

from __future__ import annotations

import functools

from jupyter_elastic.training import group


def is_peer_lost(error: BaseException) -> bool:
    """Return True if a collective failed because a member is gone; TensorFlow wraps Horovod's error in its own."""
    if any(kind.__name__ == "HorovodInternalError" for kind in type(error).__mro__):
        return True
    return type(error).__name__ in {"UnknownError", "InternalError", "FailedPreconditionError"} and "orovod" in str(
        error
    )


def peer_lost(error: BaseException) -> group.PeerLost | None:
    """Return the error to raise instead, or None when no member is gone."""
    if isinstance(error, group.PeerLost):
        return error
    return _both()(str(error)) if is_peer_lost(error) else None


@functools.cache
def _both() -> type[group.PeerLost]:
    """Return an error class that Horovod's own elastic loop catches as well as ours."""
    from horovod.common.exceptions import HorovodInternalError

    class HorovodPeerLost(group.PeerLost, HorovodInternalError):
        """A member of the Horovod group is gone."""

    return HorovodPeerLost
