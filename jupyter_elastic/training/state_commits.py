"""Makes a state's commits, and restores the state from them: in memory, on disk, and between the members of a group.

A commit is one blob of bytes, and the same blob serves memory, disk, a rollback, and a joining worker. Knows the
state's values and objects and its position; must not know when to commit, nor the loops.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import uuid
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np

from jupyter_elastic.training import commit_blob, link
from jupyter_elastic.training.context import context
from jupyter_elastic.training.frameworks.framework import Tracked
from jupyter_elastic.training.frameworks.imported import complete, sharding_support, torch_support
from jupyter_elastic.training.group import Array, Group, Overtaken, PeerLost
from jupyter_elastic.training.position import Position
from jupyter_elastic.training.ranks import collective
from jupyter_elastic.types.errors import BadRequest, EngineError


class StateCommits:
    """The commits of one state, which share its values and its objects.

    Args:
        values: The state's attributes by name, without its position.
        parts: The frameworks' objects among them.
        position: The place in the data.
        factory: Makes sharded objects anew in each group (`sharded.Factory`); None: the state's objects are whole.
        reserved: Returns True for a name that is a word of the state itself.
    """

    def __init__(
        self,
        values: dict[str, Any],
        parts: dict[str, Tracked],
        position: Position,
        factory: Any,
        reserved: Callable[[str], bool],
    ) -> None:
        self._values, self._parts, self._position = values, parts, position
        self._factory, self._reserved = factory, reserved
        self.sharded = factory is not None
        self._fresh = True
        """True until the state was made the same as the other members'."""
        self._restored = False
        """True if the state went back to a commit since it was last the same."""
        self._left = False
        """True if the state is unchanged since the group agreed to change; a rollback must not touch it."""
        self.saved: commit_blob.Bytes | None = None
        """The last commit; on rank 0 of a job, the one that is kept outside of this process."""

    # --- keeping and going back ---------------------------------------------------------------------------------------

    def save(self, *, durable: bool) -> None:
        """Keep everything as it is now, on this worker or, by the one that owns the job's commits, for the job.

        Raises:
            EngineError: There is no room for it.
        """
        pieces = self.pieces()
        _require_whole_group()
        if link.current is None or not owns_commits(context.group):
            self.saved = b"".join(pieces)
            return
        try:
            if self._factory is not None:
                link.current.save_shards(self._factory.folder, *pieces, durable=durable)
            else:
                link.current.save(*pieces, durable=durable)
        except OSError as problem:
            size = sum(map(len, pieces)) / 1e6
            raise EngineError(
                f"There is no room for a commit of {size:.1f} MB, neither in shared memory (/dev/shm) nor in the job's "
                f"folder: {problem}. The commit before is kept. Free some space and submit the cell again."
            ) from problem
        kept = link.current.load() if self._factory is None else None
        self.saved = b"".join(pieces) if kept is None else kept

    def begin(self) -> None:
        """Keep a first commit, for a group that breaks before the first `commit`.

        A state that is trained again may have changed since its last commit, and other members take it from here.
        """
        if (self.saved is None or not self._fresh) and not (self._factory is not None and self._parts):
            self.saved = self.encoded()

    def restore(self) -> None:
        """Go back to the last commit.

        Raises:
            BadRequest: There is none yet.
        """
        if self._left:
            return
        if self.saved is None:
            raise BadRequest("There is no commit to go back to: call state.commit() first.")
        for part in self._parts.values():
            part.reset()
        self.decode(self.saved)
        self._restored = True

    def end_as(self, blob: commit_blob.Bytes) -> None:
        """Take the state at the end of a training in which this worker has not taken part."""
        for part in self._parts.values():
            part.reset()
        self.decode(blob)
        self.saved = None

    def leave(self) -> None:
        """Prepare for a planned change: if all members die in it, the job goes on from here."""
        self._position.drop_loops()
        if self._factory is not None:
            return  # all members have kept their shards together
        self.saved, self._left = None, True
        if owns_commits(context.group):
            self.save(durable=False)

    def reset(self) -> None:
        """Prepare for another generation, before the states are made the same."""
        for part in self._parts.values():
            part.reset()
        self._position.drop_loops()
        context.begin_step()
        if owns_commits(context.group):
            self._position.report_lost_epoch()

    # --- the objects --------------------------------------------------------------------------------------------------

    @property
    def framework(self) -> str | None:
        """The framework of the state's objects: `torch`, `tensorflow`, ...; None for plain values only."""
        if self._factory is not None:
            return "torch"
        names = {part.framework for part in self._parts.values()} - {None}
        if len(names) > 1:
            both = " and ".join(sorted(map(str, names)))
            raise BadRequest(
                f"This training.State holds objects of {both}. A group trains one framework at a time: keep the "
                "objects of the other one out of the state."
            )
        return next(iter(names), None)

    def objects(self) -> dict[str, Any]:
        """Return models, optimizers and schedulers by their names."""
        return {name: part.value for name, part in self._parts.items()}

    def require_logical(self) -> None:
        """Refuse a state that can't be the same for every number of processes."""
        logical = self._position.logical_workers
        if not logical:
            return
        if self.framework != "torch":
            raise BadRequest(
                f"logical_workers={logical} is for PyTorch: put the model and its optimizer of torch.optim into "
                "training.State. For Keras and TensorFlow leave logical_workers (`--logical`) out."
            )
        if context.size > logical:
            raise BadRequest(
                f"{context.size} processes can't be {logical} logical workers: ask for `--gpus 1:{logical}`"
                " at most, or for more logical workers. The last commit is kept."
            )
        torch_support().require_logical(self.objects().values())

    # --- one state for all members ------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make the members' states one; a job that begins anew takes up this training's last commit here.

        In a planned change, members keep their models and optimizers, and only joining workers take rank 0's. If one
        member went back to a commit, a step may have been taken by some of them only: all take rank 0's commit.
        """
        self.require_logical()
        if self._factory is None:
            self._send(context.group)
        else:
            if context.group is not None:
                _in_one_training(context.group, np.zeros(0))
            self._build_and_load()
        self._fresh = self._restored = self._left = False

    def _send(self, group: Group | None) -> None:
        if group is None or group.rank() == 0:
            if self._fresh:
                self._load_first()
            if self._fresh or self.saved is None:
                self.save(durable=False)  # a job that must begin again begins with the same weights
        if group is not None and group.size() > 1:
            self._share(group)

    def _share(self, group: Group) -> None:
        first = group.rank() == 0
        flags = np.array([float(self._restored or (self._fresh and first)), float(self._fresh)])
        restored, newcomers = _in_one_training(group, flags)
        plain = group.broadcast((first and commit_blob.plain(self.saved or b"")) or b"")
        takes = not first and (self._fresh or restored > 0)
        if restored or newcomers:
            kept = _kept(plain) if takes else None
            missing = group.total(np.array([float(takes and kept is None)]))[0]
            sent = group.broadcast(bytes(self.saved or b"") if first else b"") if missing else b""
            if takes:
                self.saved = sent if kept is None else kept
                self.decode(self.saved)
        if not first and not takes:
            self._take_plain(pickle.loads(plain))  # noqa: S301  by rank 0 of this job
            if self.saved is None:
                kept = _kept(plain)
                self.saved = self.encoded() if kept is None else kept

    def _build_and_load(self) -> None:
        """Have the factory make this group's objects, and all members load their shards of the last commit."""
        group, job = sharding_support().required(context.group)
        mine = b""
        if self._parts:  # the state of an earlier training, which may have changed since its last commit
            self.save(durable=False)
            self.drop()
        if group.rank() == 0:
            kept, folder = self.saved, None
            if (found := job.load_shards()) is not None and _training_of(found[0]) == _training():
                kept, folder = found
            mine = pickle.dumps((kept, folder, sharding_support().seed()))
        self.saved, self._factory.folder, seed = pickle.loads(collective(lambda: group.broadcast(mine)))  # noqa: S301
        self.build(seed)
        self.decode(self.saved)
        if self._factory.folder is None:
            self.save(durable=False)

    def build(self, seed: int = 0) -> None:
        """Have the factory, if there is one, make the objects for the present group."""
        if self._factory is not None:
            parts = self._factory.build(seed)
            for name in parts:
                if name in self._values or self._reserved(name):
                    raise BadRequest(f"The factory returns {name!r}, and the state has that already: rename it.")
            self._parts.clear()
            self._parts.update(parts)
            self._values.update((name, part.value) for name, part in parts.items())

    def drop(self) -> None:
        """Drop the objects that the factory has made for a group that is over."""
        if self._factory is not None:
            context.begin_step()
            for name in self._parts:
                del self._values[name]
            self._parts.clear()
            self._factory.drop()
            gc.collect()

    def _load_first(self) -> None:
        if link.current is None or not owns_commits(context.group):
            return
        kept = link.current.load()
        if kept is not None and _training_of(kept) == _training():
            self.decode(kept)

    # --- the bytes ----------------------------------------------------------------------------------------------------

    def encoded(self) -> bytes:
        """Return everything, as one blob."""
        return b"".join(self.pieces())

    def pieces(self) -> list[commit_blob.Bytes]:
        """Return everything, in the pieces of one blob, which are the memory of the objects themselves."""
        complete(self._parts)
        epoch, place = self._position.packed()
        kept = {name: value for name, value in self._values.items() if name not in self._parts}
        plain = {"epoch": epoch, **kept}
        logical = self._position.logical_workers
        content = {
            "training": _training(),
            "name": uuid.uuid4().hex,  # unique among all commits
            "logical": logical and (logical, torch_support().threads()),
            "position": place,
            "values": plain,
        }
        try:
            pickled = cloudpickle.dumps(content, protocol=5)
        except Exception as problem:
            name = _unpicklable(plain)
            raise BadRequest(
                f"state.{name} can't be committed ({problem}). Keep such an object outside of training.State, or hold "
                "in the state the values from which it can be made again."
            ) from problem
        parts = {name: part.capture() for name, part in self._parts.items()}
        if self._factory is not None and parts:
            parts = self._factory.save(parts)
        return commit_blob.pack(pickled, parts)

    def decode(self, blob: commit_blob.Bytes) -> None:
        """Restore everything from `blob`."""
        content, parts = commit_blob.unpack(blob)
        workers, threads = content["logical"] or (None, None)
        logical = self._position.logical_workers
        if workers != logical:
            raise BadRequest(
                f"The commit of this job was made with logical_workers={workers}, and the training.State here has "
                f"{logical}: it would compute something else from here on. Give it the same number, or begin a new job."
            )
        if threads is not None:
            torch_support().set_threads(threads)
        if self._factory is not None:  # the factory's objects may not be there yet, or no more
            parts = self._factory.load(parts) if self._parts else {}
        missing = sorted(set(parts) - set(self._parts))
        if missing:
            raise BadRequest(
                f"The commit holds {', '.join(missing)}, and the training.State here does not: make the state with the "
                "same attributes on every worker."
            )
        complete(self._parts)
        for name, captured in parts.items():
            self._parts[name].apply(captured)
        self._take_plain(content)

    def _take_plain(self, content: dict[str, Any]) -> None:
        values = dict(content["values"])
        epoch = values.pop("epoch")
        for name in set(self._values) - set(values) - set(self._parts):
            del self._values[name]
        self._values.update(values)
        self._position.restore(epoch, content["position"])


def _in_one_training(group: Group, flags: Array) -> Any:
    """Return the sum of the members' flags, once all are in the same training; raise `Overtaken` on others.

    A member that is behind takes up the outcome of its training, and comes here again in the next one.
    """
    while group.size() > 1:
        numbers = np.zeros(group.size())
        numbers[group.rank()] = _training()
        summed = group.total(np.concatenate([flags, numbers]))
        numbers = summed[len(flags) :]
        if _training() < numbers.max():
            raise Overtaken
        if numbers.min() == numbers.max():
            return summed[: len(flags)]
    return flags


def _training() -> int:
    return 0 if link.current is None else link.current.training


def _training_of(blob: commit_blob.Bytes) -> int:
    """Return the number, within its cell, of a commit's training; 1 for older versions of this package."""
    plain = commit_blob.plain(blob)
    return 1 if plain is None else int(pickle.loads(plain).get("training", 1))  # noqa: S301  the job's own


def _require_whole_group() -> None:
    """Check the group before a commit is kept, whose values may come from a collective that a death has broken."""
    try:
        if context.group is not None:
            context.group.require_whole()
    except PeerLost as lost:
        context.interrupt(lost)


def owns_commits(group: Group | None) -> bool:
    """Return True if this worker's commits are the job's; workers without a group have no common commits."""
    if group is not None and group.elastic:
        return group.rank() == 0
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def _kept(plain: bytes) -> memoryview | None:
    """Return the job's last commit from shared memory or disk, if it is the one with these plain values."""
    if link.current is None:
        return None
    with contextlib.suppress(OSError):
        blob = link.current.load()
        if blob is not None and commit_blob.plain(blob) == plain:
            return blob
    return None


def _unpicklable(values: dict[str, Any]) -> str:
    for name, value in values.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return name
    return "?"
