"""Keeps the place of a training in its data: epoch, pass over the data, batch of the pass, samples.

Knows the loops over epochs and batches, and the present micro-batch; must not know how a commit is kept.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator

from jupyter_elastic.training.context import WARM_STEP, ElasticState, StepWarmedUp, context
from jupyter_elastic.training.data import MicroBatch
from jupyter_elastic.training.frameworks import imported
from jupyter_elastic.training.frameworks.framework import Tracked
from jupyter_elastic.training.pace import pace
from jupyter_elastic.training.ranks import warm_up


class Position:
    """The place of one state's training in its data.

    Args:
        state: The state whose place this is. Referred to weakly: its models are freed as soon as the cell drops it.
        parts: The frameworks' objects of the state, which trainings with logical workers watch.
        logical_workers: Number of logical workers that share each batch; None: as many as there are workers.
    """

    own = True
    """True if a loop over batches is at this place: its turns are counted, and the group is asked in them."""

    def __init__(self, state: ElasticState, parts: dict[str, Tracked], logical_workers: int | None) -> None:
        self.epoch = 0
        self._parts = parts
        self.logical_workers = logical_workers
        self._state = weakref.ref(state)
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

    # --- where it is --------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Optimizer steps taken since the training began, over all epochs and attempts."""
        return self._step + self._in_flight()[0]

    @property
    def samples(self) -> int:
        """Samples trained since the training began, over all workers."""
        return self._samples + self._in_flight()[1]

    @property
    def seen(self) -> int:
        """Samples trained in the present epoch."""
        return self._in_epoch + self._in_flight()[1]

    @property
    def in_epochs(self) -> bool:
        """True within a loop over `epochs`."""
        return self._in_epochs is not None

    @property
    def looping(self) -> bool:
        """True within a loop over batches."""
        return self._iteration is not None

    def _in_flight(self) -> tuple[int, int]:
        """Return the steps, 0 or 1, and samples of a batch that is trained although its turn of the loop isn't over."""
        if context.micro_batch is None or context.state is not self._state():
            return 0, 0
        trained = context.trained if context.reducers else context.micro_batch.last
        return int(trained), trained * context.micro_batch.batch

    def _next(self) -> tuple[int, int, int]:
        """Return the position from which a training has to go on: epoch, pass over the data, batches done in it."""
        if self._in_epochs is not None and self._iteration is None and self._calls > 0 and self._calls >= self._pass:
            return self.epoch + 1, 0, 0
        if self._in_flight()[0]:
            return self.epoch, self._pass, self._done + 1
        return self.epoch, self._pass, self._done if self._iteration is None else self._stepped

    # --- the loops ----------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs that are still to be trained (see `State.epochs`)."""
        mine = self._in_epochs = object()  # an older generator that is only now thrown away must not end this one
        context.epochs = count
        try:
            while self.epoch < count:
                epoch = self.epoch
                self._calls = 0
                self.seed(0, 0, 0)
                yield epoch
                if context.warming_up:
                    raise StepWarmedUp
                context.require_group()
                self._place(epoch + 1, 0, 0)
        finally:
            if self._in_epochs is mine:
                self._in_epochs = None

    def seed(self, seed: int, step: int, worker: int) -> None:
        """Seed a logical worker's random numbers for this step; worker 0 stands for the code between steps."""
        if self.logical_workers:
            imported.seed((seed, int(self.epoch), self._calls, step, worker))

    def _place(self, epoch: int, passes: int, done: int) -> None:
        if epoch != self.epoch:
            self._in_epoch = 0
        self.epoch = epoch
        self._pass, self._done = passes, done

    def enter(self, count: int) -> int | None:
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

    def open(self) -> object:
        """Begin a loop over batches; return what `close` takes."""
        self._iteration = object()
        return self._iteration

    def close(self, opened: object) -> None:
        """End that loop over batches, unless it is not the present one any more."""
        if self._iteration is opened:
            self._iteration = context.micro_batch = None

    def begin_turn(self, step: int, start: int) -> None:
        """Check for a change; without a prepared optimizer the check costs a message of its own, so only now and then.

        `start` is the first step of this loop.
        """
        state = self._state()
        assert state is not None  # the function that is looping holds it
        context.require_group()
        if context.warming_up:
            if step > start:
                raise StepWarmedUp
        else:
            if not context.warm and self.step == WARM_STEP:
                warm_up()
            if context.change is not None or step == start or step % 8 == 0:
                state.check_host_updates()
        context.begin_step()
        if self.logical_workers and step == start:  # PyTorch's parts report a step that they can't reproduce
            imported.torch_support().watch(part.value for part in self._parts.values())

    def take(self, micro_batch: MicroBatch) -> None:
        """Have this micro-batch be computed now."""
        context.micro_batch = context.given = micro_batch

    def end_turn(self, samples: int, computed: int, done: int, count: int) -> None:
        """Count a batch of `samples`, of which this worker computed `computed`: `done` batches of this pass are done.

        `count` is the number of samples in the pass.
        """
        pace.end(computed)
        context.micro_batch = None
        self._done = done
        stepped = context.trained or not context.reducers
        self._idle = self._idle and not stepped
        if self._in_epochs is not None:  # a pass in which no optimizer steps is an evaluation
            context.passes[-1] = 0 if self._idle else count
        self._unproven += samples
        if stepped or (self._idle and not any(f.accumulates() for f in imported.frameworks())):
            self._stepped = done
        if stepped:
            self._step += 1
            self._samples, self._in_epoch = self._samples + self._unproven, self._in_epoch + self._unproven
            self._unproven = 0

    def leave(self) -> None:
        """End a whole pass over the data."""
        self._done = 0
        self._pass += self._in_epochs is not None

    def passed(self, steps: int) -> None:
        """Record a whole pass over some data that was trained by other means than `batches` (Keras' `fit`)."""
        self._step += steps
        self._calls += 1
        self._pass, self._done = max(self._pass, self._calls), 0

    # --- commits and changes ------------------------------------------------------------------------------------------

    def packed(self) -> tuple[int, tuple[int, int, int, int, int]]:
        """Return the place from which a training has to go on, for a commit: the epoch, and the numbers within it."""
        epoch, passes, done = self._next()
        return epoch, (passes, done, self.step, self.samples, self.seen if epoch == self.epoch else 0)

    def restore(self, epoch: int, numbers: tuple[int, int, int, int, int]) -> None:
        """Go to the place of a commit."""
        self.epoch = epoch
        self._pass, self._done, self._step, self._samples, self._in_epoch = numbers
        context.micro_batch = None

    def settle(self) -> None:
        """Count what is trained of the present batch, because the group changes within its turn."""
        epoch, passes, done = self._next()
        self._step, self._samples, self._in_epoch = self.step, self.samples, self.seen
        context.micro_batch = None
        self._place(epoch, passes, done)

    def drop_loops(self) -> None:
        """Drop the loops of a function that will be called anew."""
        self._in_epochs = self._iteration = None

    def committed(self) -> None:
        """Note that a commit was made here, of an epoch whose end is unknown if it had no pass over data."""
        if self._in_epochs is not None and not self._calls and self._unplaced != -1:
            self._unplaced = int(self.epoch)

    def report_lost_epoch(self) -> None:
        """Print, once, that the present epoch begins again although it was committed."""
        if self._unplaced == self.epoch and not (self._pass or self._done):
            self._unplaced = -1  # and no later epoch is reported
            sys.stderr.write(
                f"note: epoch {self.epoch} begins again: its data came neither by training.batches nor by fit, so that "
                "nobody knows how far it was. After the last batch, state.commit(epoch_done=True) keeps it\n"
            )


class NoPosition:
    """The place of a loop that has none, outside of a training or within another loop: nothing is kept or counted."""

    own = False
    looping = False
    in_epochs = False
    logical_workers: int | None = None

    def enter(self, count: int) -> int | None:  # noqa: ARG002  as `Position`'s
        """Return the first batch."""
        return 0

    def open(self) -> object:
        """Return what `close` takes."""
        return self

    def close(self, opened: object) -> None:
        """Do nothing."""

    def seed(self, seed: int, step: int, worker: int) -> None:
        """Do nothing."""

    def begin_turn(self, step: int, start: int) -> None:
        """Do nothing."""

    def take(self, micro_batch: MicroBatch) -> None:
        """Do nothing."""

    def end_turn(self, samples: int, computed: int, done: int, count: int) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""


NOWHERE = NoPosition()
