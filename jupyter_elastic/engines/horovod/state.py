"""Keeps the commits of native Horovod states (`hvd.elastic.TorchState` and its like) so that they outlive the workers.

Horovod keeps a commit in the memory of each worker; when all members die, or the job is preempted, it is lost. Here
rank 0's `save()` also gives the commit to the driver, as a pickle that only the same user's workers ever read, and when
no member of a new group holds state, rank 0 restores it before `sync()`. Imports no framework.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import cloudpickle

from jupyter_elastic.engines.common.group_worker import GroupWorker
from jupyter_elastic.engines.horovod.errors import peer_lost
from jupyter_elastic.training.group import PeerLost, translated

MAGIC = b"horovod-state 1\n"
_INTERNAL = frozenset({
    "_bcast_object", "_bcast_model", "_bcast_op", "_rank", "_host_messages", "_last_updated_timestamp",
    "_reset_callbacks", "_handlers", "_eval_fn", "_assign_fn", "model", "optimizer", "backend", "session", "variables",
    "save", "sync", "restore",
})  # fmt: skip
"""Attributes of Horovod's state classes that belong to the process and not to the training."""


class CommitHook:
    """Watches the native states of one worker; `reset` leaves the group and forms the next."""

    def __init__(self, worker: GroupWorker, reset: Callable[[], None]) -> None:
        self._worker = worker
        self._reset = reset
        self._session = worker.session
        self._watch: Callable[[], AbstractContextManager[None]] | None = None
        self._rank = 0
        self._restore = False
        self._states: list[Any] = []
        self._ordinals: dict[int, int] = {}

    def next_cell(self) -> None:
        """Switch to the next job's commits."""
        self._session = self._worker.session

    def begin(
        self, rank: int, *, restore: bool, watch: Callable[[], AbstractContextManager[None]] | None = None
    ) -> None:
        """Begin a membership; `restore`: no member holds state; `watch` wraps the reset callbacks."""
        self._rank, self._restore, self._watch = rank, restore, watch

    def hook(self, state: Any) -> None:
        """Watch `state` from now on."""
        if id(state) in self._ordinals:
            return
        ordinal = len(self._states)
        self._ordinals[id(state)] = ordinal
        self._states.append(state)
        save, sync, restore, on_reset = state.save, state.sync, state.restore, state.on_reset

        def kept_save() -> None:
            save()
            self._session.took_part()
            if self._rank == 0:
                self._session.save(_dump(state, ordinal))

        def syncing() -> None:
            # Horovod knows TensorFlow's form of a broken group in the training function alone.
            if self._restore:
                translated(lambda: self._come_back(state, ordinal), peer_lost)
            with _options_too(state):
                translated(sync, peer_lost)
            # Horovod's TorchState leaves the handlers' saved copies as they were: a newcomer that must go back
            # before its first commit would go back to untrained weights.
            save()
            self._worker.has_state = True
            self._restore = False

        def noticing_restore() -> None:
            self._worker.lost_a_peer = True
            restore()

        def persistent_on_reset() -> None:
            """Run the reset callbacks, whose group may break as any other: Horovod's own loop would end there."""
            while True:
                try:
                    with self._watch() if self._watch is not None else contextlib.nullcontext():
                        translated(on_reset, peer_lost)
                except PeerLost:
                    state.restore()
                    self._reset()
                else:
                    return

        state.save, state.sync, state.restore, state.on_reset = (
            kept_save,
            syncing,
            noticing_restore,
            persistent_on_reset,
        )

    def _come_back(self, state: Any, ordinal: int) -> None:
        """Let rank 0 restore another group's last commit: a reset for all members, as if they had been in it."""
        kept = _kept(self._session.load(), ordinal)
        if kept is None:
            return
        if self._rank == 0:
            _restore(state, kept)
        for callback in getattr(state, "_reset_callbacks", ()):
            callback()

    def save_newest(self) -> None:
        """Let the newest native state commit, whatever rank this worker had."""
        self._rank = 0
        if self._states:
            self._states[-1].save()


def _dump(state: Any, ordinal: int) -> bytes:
    """Return as bytes what `state.save()` has just put aside."""
    handlers = {
        name: {key: value for key, value in vars(handler).items() if key.startswith("_saved")}
        for name, handler in getattr(state, "_handlers", {}).items()
    }
    skip = _INTERNAL | handlers.keys()
    own: dict[str, bytes] = {}
    for name, value in vars(state).items():
        if name not in skip:
            with contextlib.suppress(Exception):  # an attribute that can't travel belongs to the process
                own[name] = cloudpickle.dumps(value)
    return MAGIC + pickle.dumps({"ordinal": ordinal, "handlers": cloudpickle.dumps(handlers), "own": own})


def _kept(blob: memoryview | None, ordinal: int) -> dict[str, Any] | None:
    """Return the dump of this state. A commit of another state of the cell is left alone."""
    if blob is None or blob[: len(MAGIC)] != MAGIC:
        return None
    kept: dict[str, Any] = pickle.loads(blob[len(MAGIC) :])  # noqa: S301 - by this job's own workers, in a private folder
    return kept if kept["ordinal"] == ordinal else None


@contextlib.contextmanager
def _options_too(state: Any) -> Iterator[None]:
    """Within `state.sync()`, send all options of rank 0's optimizers too, such as the learning rate.

    Horovod's TorchState does so only for optimizers that have a state: SGD without momentum has none. They travel with
    the state's plain values, for each collective more is a pause of the group.
    """
    handlers = getattr(state, "_handlers", {}).values()
    optimizers = [handler.value for handler in handlers if hasattr(handler.value, "param_groups")]
    if not optimizers:
        yield
        return
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    options = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    plain, given = state._bcast_object, False

    def broadcast(value: Any) -> Any:
        nonlocal given
        if given:
            return plain(value)
        value, chosen = plain((value, options))
        given = True
        for group, received in zip(groups, chosen, strict=True):
            group.update(received)
        return value

    state._bcast_object = broadcast
    try:
        yield
        if not given:  # there are no plain values
            broadcast(None)
    finally:
        state._bcast_object = plain


def _restore(state: Any, kept: dict[str, Any]) -> None:
    """Put a dump back and let the state go back to it."""
    for name, saved in pickle.loads(kept["handlers"]).items():  # noqa: S301
        vars(state._handlers[name]).update(saved)
    for name, value in kept["own"].items():
        vars(state)[name] = pickle.loads(value)  # noqa: S301
    type(state).restore(state)
