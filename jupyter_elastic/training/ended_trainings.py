"""Keeps the outcome of each training of a cell, for workers that come to the training when it is over.

The trainings of a cell are told apart by their order, which is the same on all workers. When the cell has come to the
next one, rank 0 keeps the state that the last one ended with, and what it returned or raised. A worker that runs the
cell from its top later (one that joins, or any of a job that begins anew) takes that up instead of training again.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from jupyter_elastic.jobfiles import code_by_value
from jupyter_elastic.training import link
from jupyter_elastic.training.group import Group, Overtaken
from jupyter_elastic.training.ranks import groups, in_job
from jupyter_elastic.training.state_commits import StateCommits, owns_commits
from jupyter_elastic.types.errors import EngineError

_Result = TypeVar("_Result")
_LENGTH = struct.Struct("<Q")
_last: tuple[link.JobLink, str] | None = None
"""On rank 0: the job of a finished training, and why its outcome can't be kept; empty when it is written down."""


def once(state: object, commits: StateCommits, group: Group, train: Callable[[], _Result]) -> _Result:
    """Call `train()`, which trains `state`, or take up this training's outcome if it is over.

    Raises:
        EngineError: The training is over for the other workers, and its outcome was not kept.
    """
    job = link.current
    if job is None:
        return train()
    _keep_last(job)
    job.training += 1
    outcome = _taken_up(state, commits, job)
    if outcome is None:
        try:
            value = train()
        except Overtaken:
            outcome = _taken_up(state, commits, job)
            if outcome is None:
                raise EngineError(
                    f"The other workers are past training {job.training} of this cell, and what it gave is not kept on "
                    "this host: this worker can't come in."
                ) from None
        except Exception as problem:
            _write(state, commits, group, job, problem, raised=True)
            raise
        else:
            _write(state, commits, group, job, value, raised=False)
            return value
    value, raised = outcome
    if raised:
        raise value
    result: _Result = value
    return result


def _write(state: object, commits: StateCommits, group: Group, job: link.JobLink, value: Any, *, raised: bool) -> None:
    """Write down what is kept if the cell goes on to another training. A failure to write ends nothing."""
    global _last
    found, why = groups(), ""
    try:
        if raised and found is not None and found.peer_lost(value) is not None:
            return
        if not owns_commits(group):
            return
        if commits.sharded:
            why = "the objects of a training.State(factory=...) are shards"
        else:
            given = _dumps((value, raised), {"": state, **commits.objects()})
            job.write_training(_LENGTH.pack(len(given)), given, *commits.pieces())
    except Exception as problem:
        why = f"{type(problem).__name__}: {problem}"
    _last = job, why


def _keep_last(job: link.JobLink) -> None:
    """Keep the last outcome: the cell has come to another training, and has caught any error of the last."""
    global _last
    kept, _last = _last, None
    if kept is None or kept[0] is not job:
        return
    if not kept[1]:
        job.keep_training()
        return
    sys.stderr.write(
        f"note: what training {job.training} of this cell has given can't be kept ({kept[1]}). No new worker can come "
        "in from here on, and a job that is paused trains again from the beginning\n"
    )


def _taken_up(state: object, commits: StateCommits, job: link.JobLink) -> tuple[Any, bool] | None:
    """Return the value that the present training returned or raised, and True if raised; restore its final state.

    None: the training is not over, or was not kept.
    """
    kept = job.finished()
    if kept is None:
        return None
    try:
        begin = _LENGTH.size + _LENGTH.unpack_from(kept)[0]
        # by rank 0 of this job, in its private folder
        outcome = _loads(kept[_LENGTH.size : begin], {"": state, **commits.objects()})
    except Exception as problem:  # some pickles can be written but not read
        sys.stderr.write(f"note: what training {job.training} of this cell has given can't be read ({problem})\n")
        return None
    commits.end_as(kept[begin:])
    if in_job()[0] == 0:
        sys.stderr.write(f"note: training {job.training} of this cell was finished before: its result is taken up\n")
    return outcome


def _dumps(outcome: tuple[Any, bool], objects: dict[str, Any]) -> bytes:
    """Return a pickle with names for the state and its objects: a cell that is run again has made them already.

    The cell's classes are named too: else it could not catch an exception of theirs.
    """
    names = {id(value): name for name, value in objects.items()}
    cell = sys.modules["__main__"]

    class Pickler(code_by_value.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return names.get(id(value))

        def reducer_override(self, obj: Any) -> Any:
            name = obj.__qualname__ if isinstance(obj, type) else ""
            return name if name and getattr(cell, name, None) is obj else super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file, protocol=5).dump(outcome)
    return file.getvalue()


def _loads(outcome: memoryview, objects: dict[str, Any]) -> tuple[Any, bool]:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, name: str) -> Any:
            return objects[name]

    value, raised = Unpickler(io.BytesIO(outcome)).load()
    return value, raised
