"""The state of a training, the same on all workers, kept beyond them: models, optimizers, values, position.

A commit is one blob of bytes, and the same blob serves memory, disk, a rollback, and a joining worker. Frameworks'
objects are `Tracked`, which their own modules make.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import cloudpickle
import numpy as np

from jupyter_elastic.training import commit_blob, link, logical
from jupyter_elastic.training.context import StepWarmedUp, context
from jupyter_elastic.training.frameworks.tracked import Tracked
from jupyter_elastic.training.group import Array, Group, MembershipChanged, Overtaken, PeerLost
from jupyter_elastic.training.ranks import collective
from jupyter_elastic.types import LOGICAL_WORKERS, MAX_WORKERS
from jupyter_elastic.types.errors import BadRequest, EngineError

_FRAMEWORKS = {"keras": ("keras", "tf_keras"), "torch": ("torch",), "tensorflow": ("tensorflow",)}
"""Our module for each framework, and the modules whose presence means that the cell uses the framework. On Keras' torch
backend a model is a module of PyTorch's too: Keras is asked first."""


class State:
    """The state of a training, as attributes: `State(model=model, optimizer=optimizer, best=0.0)`.

    Attributes set later count too. Optimizers are prepared for exact gradients of the global batch (see `prepare`).
    `epoch` and `history`, to which `log` adds, are always there.

    Args:
        logical_workers: Compute as this many workers would, bit for bit, whatever their real number: they share each
            batch, their gradients are added up in one fixed order, and each draws random numbers of its own (Python,
            NumPy, PyTorch). For PyTorch; at least as many as the job ever has processes. Default: the value of
            `--logical`, else None: as many as there are workers.
        factory: Makes the objects that are sharded over the group (PyTorch's FSDP2) and returns them by name. It is
            called anew in each group, with a mesh of its workers, within the function under `training.run`; there they
            are the state's attributes.
        values: Any number of models, optimizers and schedulers (PyTorch or Keras, one framework), and plain values that
            can be pickled. The same names on every worker.

    Raises:
        BadRequest: A name is one of the state's own, a Keras model has no weights yet, objects of two frameworks are
            in one state, some are given beside a factory, or the job may have more processes than `logical_workers`.
    """

    def __init__(
        self,
        *,
        factory: Callable[[Any], dict[str, Any]] | None = None,
        logical_workers: int | None = None,
        **values: Any,
    ) -> None:
        object.__setattr__(self, "_logical", _checked(logical_workers))
        object.__setattr__(self, "_factory", None if factory is None else _made_anew(factory, self._logical))
        object.__setattr__(self, "_values", {"epoch": 0, "history": []})
        object.__setattr__(self, "_parts", {})
        self._pass = self._done = self._step = self._samples = self._in_epoch = 0
        self._calls = 0
        self._unplaced: int | None = None
        """The last epoch that was committed without a pass over data, so that its end is unknown."""
        self._unproven = 0
        """Samples of this pass since the optimizer last stepped."""
        self._stepped = 0
        """Batches of this pass until that step: a change goes back to there, for a state holds no gradients."""
        self._idle = True
        """True while the optimizer has not stepped in this pass."""
        self._in_epochs: object | None = None
        self._iteration: object | None = None
        self._fresh = True
        """True until the state was made the same as the other members'."""
        self._restored = False
        """True if the state went back to a commit since it was last the same."""
        self._left = False
        """True if the state is unchanged since the group agreed to change; a rollback must not touch it."""
        self._saved: commit_blob.Bytes | None = None
        """The last commit; on rank 0 of a job, the one that is kept outside of this process."""
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        if hasattr(type(self), name):
            raise BadRequest(f"`{name}` is a word of training.State itself; give the attribute another name.")
        part = _tracked(value)
        if self._factory is not None and (part is not None or name in self._parts):
            raise BadRequest(
                f"state.{name} can't be set: with training.State(factory=...) models, optimizers and schedulers are "
                "those that the factory returns, all of them."
            )
        self._values[name] = value
        if part is None:
            self._parts.pop(name, None)
        else:
            self._parts[name] = part
            _complete(self._parts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"the training state has no attribute {name!r}")
        if name not in self._values:
            missing = self._factory is not None and not self._parts
            made = "; what its factory makes is there within the function under @training.run" if missing else ""
            raise AttributeError(f"the training state has no attribute {name!r}{made}")
        return self._values[name]

    def __reduce__(self) -> Any:
        if self._factory is not None:
            raise BadRequest("A training.State(factory=...) can't be given to another process: its objects are shards.")
        return _remade, (dict(self._values), self._logical)

    def __delattr__(self, name: str) -> None:
        self._values.pop(name, None)
        self._parts.pop(name, None)

    @property
    def step(self) -> int:
        """Optimizer steps taken since the training began, over all epochs and attempts."""
        return self._step + self._in_flight()

    @property
    def samples(self) -> int:
        """Samples trained since the training began, over all workers."""
        return self._samples + self._samples_in_flight()

    @property
    def seen(self) -> int:
        """Samples trained in the present epoch."""
        return self._in_epoch + self._samples_in_flight()

    @property
    def logical_workers(self) -> int | None:
        """Number of logical workers that share each batch; None: as many as there are workers."""
        logical: int | None = self._logical
        return logical

    @property
    def framework(self) -> str | None:
        """`torch`, `tensorflow`, or None for plain values only."""
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

    @property
    def sharded(self) -> bool:
        """True if a factory makes the state's objects, sharded over the group."""
        return self._factory is not None

    # --- the place in the data ----------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs that are still to be trained, from the last commit or planned change on.

        Args:
            count: Epochs in all.

        Yields:
            The number of the epoch, from 0.
        """
        mine = self._in_epochs = object()  # an older generator that is only now thrown away must not end this one
        context.epochs = count
        try:
            while self.epoch < count:
                epoch = self.epoch
                self._calls = 0
                self._seed(0, 0, 0)
                yield epoch
                if context.warming_up:
                    raise StepWarmedUp
                context.require_group()
                self._place(epoch + 1, 0, 0)
        finally:
            if self._in_epochs is mine:
                self._in_epochs = None

    def _seed(self, seed: int, step: int, worker: int) -> None:
        """Seed a logical worker's random numbers for this step; worker 0 stands for the code between steps."""
        if self._logical:
            logical.seed((seed, int(self.epoch), self._calls, step, worker), frameworks())

    def _place(self, epoch: int, passes: int, done: int) -> None:
        if epoch != self.epoch:
            self._in_epoch = 0
        self._values["epoch"] = epoch
        self._pass, self._done = passes, done

    def _enter(self, count: int) -> int | None:
        """Return the batch with which a pass over the data begins; None if it was finished before a rescale."""
        self._stepped = self._done
        if self._in_epochs is None:
            return self._done
        self._calls += 1
        if self._calls <= self._pass:
            return None
        self._unproven, self._idle = 0, True
        del context.passes[self._pass :]
        context.passes.append(count)
        return self._done

    def _advance(self, samples: int, done: int, count: int) -> None:
        context.micro_batch = None
        self._done = done
        stepped = context.trained or not context.reducers
        self._idle = self._idle and not stepped
        if self._in_epochs is not None:  # a pass in which no optimizer steps is an evaluation
            context.passes[-1] = 0 if self._idle else count
        self._unproven += samples
        if stepped or (self._idle and not any(getattr(f, "accumulates", bool)() for f in frameworks())):
            self._stepped = done
        if stepped:
            self._step += 1
            self._samples, self._in_epoch = self._samples + self._unproven, self._in_epoch + self._unproven
            self._unproven = 0

    def passed(self, steps: int) -> None:
        """Record a whole pass over some data that was trained by other means than `batches` (Keras' `fit`)."""
        self._step += steps
        self._calls += 1
        self._pass, self._done = max(self._pass, self._calls), 0

    def _watch(self) -> None:
        """Have PyTorch's parts report a step that logical workers can't reproduce."""
        _torch().watch(part.value for part in self._parts.values())

    def _leave(self) -> None:
        self._done = 0
        self._pass += self._in_epochs is not None

    def _in_flight(self) -> int:
        """Return 1 if the present batch is trained already although its turn of the loop isn't over, else 0."""
        if context.micro_batch is None or context.state is not self:
            return 0
        return int(context.trained if context.reducers else context.micro_batch.last)

    def _samples_in_flight(self) -> int:
        return 0 if context.micro_batch is None else self._in_flight() * context.micro_batch.batch

    def _position(self) -> tuple[int, int, int]:
        """Return the position from which a training has to go on: epoch, pass over the data, batches done in it."""
        if self._in_epochs is not None and self._iteration is None and self._calls > 0 and self._calls >= self._pass:
            return self.epoch + 1, 0, 0
        if self._in_flight():
            return self.epoch, self._pass, self._done + 1
        return self.epoch, self._pass, self._done if self._iteration is None else self._stepped

    def log(self, **values: Any) -> None:
        """Add a row to `history`: epoch, step and `values`.

        The history belongs to the state: it is committed, goes back with a rollback, and after a change of the group
        all workers go on with rank 0's. `train(state)` begins anew then, so values that it gathers elsewhere are lost.

        Args:
            values: Single numbers of any framework, kept as Python's; anything else as it is, if it can be pickled.
        """
        row = {name: _number(value) for name, value in values.items()}
        self._values.setdefault("history", []).append({"epoch": int(self.epoch), "step": self.step, **row})

    # --- commits ------------------------------------------------------------------------------------------------------

    def commit(self, *, durable: bool = False, epoch_done: bool = False) -> None:
        """Keep everything as it is now, and regroup if the workers of the job are to change.

        A worker that dies takes the others back to the last commit, so commit as often as steps are dear. A commit
        after the last batch of an epoch means that the epoch is done: do all that belongs to the epoch (its evaluation,
        say) before.

        Args:
            durable: Write it to disk now; otherwise it is in memory outside of the workers, and on disk seconds later.
            epoch_done: The present epoch is over: for an epoch whose data came neither by `batches` nor by Keras'
                `fit`, so that nobody else knows.

        Raises:
            BadRequest: A value can't be pickled; the message names it. Or `epoch_done` outside of `state.epochs`.
        """
        if epoch_done and self._in_epochs is None:
            raise BadRequest("commit(epoch_done=True) works within `for state.epoch in state.epochs(...)` only.")
        if context.warming_up:
            raise StepWarmedUp
        if self._logical and not context.last_micro_batch:
            return  # no step was taken since the last one, and other processes may not call `commit` here
        if epoch_done:
            self.passed(0)
        elif self._in_epochs is not None and not self._calls and self._unplaced != -1:
            self._unplaced = int(self.epoch)
        group = context.group
        if durable or not context.change or group is None or not group.elastic:  # else `on_leave` keeps the commit
            self._save(durable=durable)
        self.check_host_updates(saved=True)

    def save(self) -> None:
        """Keep everything as it is now, without letting workers come or go."""
        self._save(durable=False)

    def _save(self, *, durable: bool) -> None:
        pieces = self.pieces()
        _require_whole_group()
        if link.current is None or not owns_commits(context.group):
            self._saved = b"".join(pieces)
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
        self._saved = b"".join(pieces) if kept is None else kept

    def begin(self) -> None:
        """Keep a first commit, for a group that breaks before the first `commit`.

        A state that is trained again may have changed since its last commit, and other members take it from here.
        """
        if (self._saved is None or not self._fresh) and not (self._factory is not None and self._parts):
            self._saved = self.encoded()

    def restore(self) -> None:
        """Go back to the last commit.

        Raises:
            BadRequest: There is none yet.
        """
        if self._left:
            return
        if self._saved is None:
            raise BadRequest("There is no commit to go back to: call state.commit() first.")
        for part in self._parts.values():
            part.reset()
        self.decode(self._saved)
        self._restored = True

    def on_leave(self) -> None:
        """Prepare for a planned change: if all members die in it, the job goes on from here."""
        self._in_epochs = self._iteration = None
        if self._factory is not None:
            return  # all members have kept their shards together
        self._saved, self._left = None, True
        if owns_commits(context.group):
            self._save(durable=False)

    def sync(self) -> None:
        """Make the members' states one; a job that begins anew takes up this training's last commit here.

        In a planned change, members keep their models and optimizers, and only joining workers take rank 0's. If one
        member went back to a commit, a step may have been taken by some of them only: all take rank 0's commit.
        """
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
            if self._fresh or self._saved is None:
                self._save(durable=False)  # a job that must begin again begins with the same weights
        if group is not None and group.size() > 1:
            self._share(group)

    def _share(self, group: Group) -> None:
        first = group.rank() == 0
        flags = np.array([float(self._restored or (self._fresh and first)), float(self._fresh)])
        restored, newcomers = _in_one_training(group, flags)
        plain = group.broadcast((first and commit_blob.plain(self._saved or b"")) or b"")
        takes = not first and (self._fresh or restored > 0)
        if restored or newcomers:
            kept = _kept(plain) if takes else None
            missing = group.total(np.array([float(takes and kept is None)]))[0]
            sent = group.broadcast(bytes(self._saved or b"") if first else b"") if missing else b""
            if takes:
                self._saved = sent if kept is None else kept
                self.decode(self._saved)
        if not first and not takes:
            self._take_plain(pickle.loads(plain))  # noqa: S301  by rank 0 of this job
            if self._saved is None:
                kept = _kept(plain)
                self._saved = self.encoded() if kept is None else kept

    def _build_and_load(self) -> None:
        """Have the factory make this group's objects, and all members load their shards of the last commit."""
        group, job = _sharded().required(context.group)
        mine = b""
        if self._parts:  # the state of an earlier training, which may have changed since its last commit
            self._save(durable=False)
            self.drop()
        if group.rank() == 0:
            kept, folder = self._saved, None
            if (found := job.load_shards()) is not None and _training_of(found[0]) == _training():
                kept, folder = found
            mine = pickle.dumps((kept, folder, _sharded().seed()))
        self._saved, self._factory.folder, seed = pickle.loads(collective(lambda: group.broadcast(mine)))  # noqa: S301
        self.build(seed)
        self.decode(self._saved)
        if self._factory.folder is None:
            self._save(durable=False)

    def build(self, seed: int = 0) -> None:
        """Have the factory, if there is one, make the objects for the present group."""
        if self._factory is not None:
            parts = self._factory.build(seed)
            for name in parts:
                if name in self._values or hasattr(type(self), name):
                    raise BadRequest(f"The factory returns {name!r}, and the state has that already: rename it.")
            self._parts = parts
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

    def require_logical(self) -> None:
        """Refuse a state that can't be the same for every number of processes."""
        if not self._logical:
            return
        if self.framework != "torch":
            raise BadRequest(
                f"logical_workers={self._logical} is for PyTorch: put the model and its optimizer of torch.optim into "
                "training.State. For Keras and TensorFlow leave logical_workers (`--logical`) out."
            )
        if context.size > self._logical:
            raise BadRequest(
                f"{context.size} processes can't be {self._logical} logical workers: ask for `--gpus 1:{self._logical}`"
                " at most, or for more logical workers. The last commit is kept."
            )
        _torch().require_logical(part.value for part in self._parts.values())

    def _load_first(self) -> None:
        if link.current is None or not owns_commits(context.group):
            return
        kept = link.current.load()
        if kept is not None and _training_of(kept) == _training():
            self.decode(kept)

    def end_as(self, blob: commit_blob.Bytes) -> None:
        """Take the state at the end of a training in which this worker has not taken part."""
        for part in self._parts.values():
            part.reset()
        self.decode(blob)
        self._saved = None

    def objects(self) -> dict[str, Any]:
        """Return models, optimizers and schedulers by their names, and the state itself under an empty name."""
        return {"": self, **{name: part.value for name, part in self._parts.items()}}

    def encoded(self) -> bytes:
        """Return everything, as one blob."""
        return b"".join(self.pieces())

    def pieces(self) -> list[commit_blob.Bytes]:
        """Return everything, in the pieces of one blob, which are the memory of the objects themselves."""
        _complete(self._parts)
        epoch, passes, done = self._position()
        plain = {name: value for name, value in self._values.items() if name not in self._parts}
        plain["epoch"] = epoch
        content = {
            "training": _training(),
            "name": uuid.uuid4().hex,  # unique among all commits
            "logical": self._logical and (self._logical, _torch().threads()),
            "position": (passes, done, self.step, self.samples, self.seen if epoch == self.epoch else 0),
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
        if workers != self._logical:
            raise BadRequest(
                f"The commit of this job was made with logical_workers={workers}, and the training.State here has "
                f"{self._logical}: it would compute something else from here on. Give it the same number, or begin a "
                "new job."
            )
        if threads is not None:
            _torch().set_threads(threads)
        if self._factory is not None:  # the factory's objects may not be there yet, or no more
            parts = self._factory.load(parts) if self._parts else {}
        missing = sorted(set(parts) - set(self._parts))
        if missing:
            raise BadRequest(
                f"The commit holds {', '.join(missing)}, and the training.State here does not: make the state with the "
                "same attributes on every worker."
            )
        _complete(self._parts)
        for name, captured in parts.items():
            self._parts[name].apply(captured)
        self._take_plain(content)

    def _take_plain(self, content: dict[str, Any]) -> None:
        for name in set(self._values) - set(content["values"]) - set(self._parts):
            del self._values[name]
        self._values.update(content["values"])
        self._pass, self._done, self._step, self._samples, self._in_epoch = content["position"]
        context.micro_batch = None

    # --- the rendezvous -----------------------------------------------------------------------------------------------

    def on_reset(self) -> None:
        """Prepare for another generation, before the states are made the same."""
        for part in self._parts.values():
            part.reset()
        self._in_epochs = self._iteration = None
        context.begin_step()
        if self._unplaced == self.epoch and not (self._pass or self._done) and owns_commits(context.group):
            self._unplaced = -1  # and no later epoch is reported
            sys.stderr.write(
                f"note: epoch {self.epoch} begins again: its data came neither by training.batches nor by fit, so that "
                "nobody knows how far it was. After the last batch, state.commit(epoch_done=True) keeps it\n"
            )

    def wanted(self) -> bool:
        """Return True if this worker knows of a change; the group has to agree on it before any member leaves."""
        if link.current is not None and link.current.change_wanted():
            return True
        return context.group is not None and context.group.change_wanted()

    def check_host_updates(self, *, saved: bool = False) -> None:
        """Regroup if the group is to change: all members together, in the same step, losing nothing."""
        group = context.group
        if group is None or not group.elastic:
            if self.wanted() and not saved:
                self._save(durable=True)
            return
        if context.change is None:
            wanted = self.wanted()
            if group.size() > 1:
                flag = np.array([float(wanted)])
                wanted = bool(collective(lambda: group.total(flag))[0])
            context.change = wanted
        change = context.change
        if self._iteration is None:
            context.change = None  # without `batches` nothing else tells that the next step has begun
        if change:
            self._regroup()

    def _regroup(self) -> NoReturn:
        if self._factory is not None:
            self._save(durable=False)
        epoch, passes, done = self._position()
        self._step, self._samples, self._in_epoch = self.step, self.samples, self.seen
        context.micro_batch = None
        self._place(epoch, passes, done)
        context.interrupt(MembershipChanged())


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


def warm_up() -> None:
    """Use the collectives of a group of one for the first time (see `WARM_STEP`)."""
    group = context.group
    if group is not None and group.elastic and (context.warming_up or group.size() == 1):
        group.broadcast(b"warm")
        group.total(np.zeros(1))
    context.warm = True


def _remade(values: dict[str, Any], logical_workers: int | None) -> State:
    """Return a state in another process, which takes the other members' state when their training takes it in."""
    state = State(logical_workers=logical_workers)
    for name, value in values.items():
        setattr(state, name, value)
    return state


def _checked(logical_workers: int | None) -> int | None:
    """Return the number of logical workers that is requested, here or by `--logical`."""
    asked = os.environ.get(LOGICAL_WORKERS) if logical_workers is None else logical_workers
    if asked is None:
        return None
    if isinstance(asked, bool) or not str(asked).isdecimal() or int(asked) < 1:
        raise BadRequest(f"logical_workers must be a whole number of at least 1, not {asked!r}.")
    if (most := int(os.environ.get(MAX_WORKERS, "0"))) > int(asked):
        raise BadRequest(
            f"logical_workers={asked} can't be shared out by the {most} processes that this job may have: submit it "
            f"with `--gpus 1:{asked}` at most, or give {most} logical workers or more."
        )
    return int(asked)


def _torch() -> Any:
    return importlib.import_module("jupyter_elastic.training.frameworks.torch")


def _sharded() -> Any:
    try:
        return importlib.import_module("jupyter_elastic.training.frameworks.sharded")
    except ImportError as problem:
        raise BadRequest(f"training.State(factory=...) needs PyTorch with FSDP2, from 2.6 on: {problem}.") from problem


def _made_anew(factory: Callable[[Any], dict[str, Any]], logical_workers: int | None) -> Any:
    if logical_workers:
        raise BadRequest(
            "training.State(factory=...) adds gradients up while they are sharded, in an order that depends on the "
            "number of processes: leave logical_workers (`--logical`) out, or give the model whole."
        )
    return _sharded().Factory(factory)


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


def frameworks() -> list[Any]:
    """Return our modules for the frameworks that this process has imported."""
    return [
        importlib.import_module(f"jupyter_elastic.training.frameworks.{name}")
        for name, modules in _FRAMEWORKS.items()
        if any(module in sys.modules for module in modules)
    ]


def _tracked(value: Any) -> Tracked | None:
    if isinstance(value, int | float | str | bytes | bool | list | tuple | dict | None):
        return None
    for framework in frameworks():
        part: Tracked | None = framework.tracked(value)
        if part is not None:
            return part
    return None


def _complete(parts: dict[str, Tracked]) -> None:
    """Let a framework complete objects that need several objects (a Keras optimizer needs its model)."""
    for framework in frameworks():
        complete = getattr(framework, "complete", None)
        if complete is not None:
            complete(list(parts.values()))


def _number(value: Any) -> Any:
    """Return a single number of any framework as Python's own; anything else as it is."""
    if isinstance(value, bool | int | float | str) or np.ndim(value) != 0:
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _unpicklable(values: dict[str, Any]) -> str:
    for name, value in values.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return name
    return "?"
