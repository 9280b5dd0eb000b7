"""Runs the cell's training function on any group, through every change of it: `@training.run`.

A lost member takes the others back to the last commit, a planned change loses nothing. Without a group the function
simply runs. Knows no framework and no engine.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import random
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from jupyter_elastic.training import ended_trainings, link
from jupyter_elastic.training.context import StepWarmedUp, context
from jupyter_elastic.training.frameworks.imported import frameworks
from jupyter_elastic.training.group import Group, MembershipChanged, Overtaken, PeerLost, SingleProcess
from jupyter_elastic.training.pace import pace
from jupyter_elastic.training.ranks import choose, translated, warm_up
from jupyter_elastic.training.report import reporter
from jupyter_elastic.training.state import State, commits_of
from jupyter_elastic.types.errors import BadRequest

_Result = TypeVar("_Result")
_ALONE = re.compile(r"/(torch/.*distributed|horovod|mpi4py)\b")
"""Files of libraries that fail in a group of one."""


def run(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Make `function(state, ...)` elastic. It is called anew after each change of the group, with the present state.

    Several such calls in one cell are trainings of their own, each with its own commits. A training that has ended is
    not trained again by a worker that joins later, or when the job begins anew: its state and its result are kept.

    So keep in the state all that must survive, and let `state.epochs` and `training.batches` find the position again.

    Args:
        function: Takes a `training.State` as its first argument, and any others.

    Returns:
        The function with the same arguments; its value is that of the call that came to its end.

    Raises:
        BadRequest: The first argument is no `training.State`.
        EngineError: The job has several workers and its engine forms no group.
    """

    @functools.wraps(function)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> _Result:
        if not isinstance(state, State):
            raise BadRequest(
                f"A function under @training.run takes a training.State as its first argument, not "
                f"{type(state).__name__}: state = training.State(model=model, optimizer=optimizer)."
            )
        code = getattr(function, "__code__", None)
        context.workload = "" if code is None else workload(code).hexdigest()
        group = choose(commits_of(state).framework)
        how = _run_alone if isinstance(group, SingleProcess) else _run_elastic
        if context.state is not None:  # a part of an outer training
            return how(function, group, state, args, kwargs)
        return ended_trainings.once(state, commits_of(state), group, lambda: how(function, group, state, args, kwargs))

    wrapper.elastic = True  # type: ignore[attr-defined]
    return wrapper


def _run_alone(
    function: Callable[..., _Result], group: Group, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Result:
    with _training(state, group):
        commits_of(state).sync()
        return function(state, *args, **kwargs)


def _run_elastic(
    function: Callable[..., _Result], group: Group, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Result:
    commits = commits_of(state)
    translated(group.join)
    if group.provisional and uses_batches(function.__code__):
        warm_up_step(function, group, state, args, kwargs)
    if commits.framework is not None and not (state.sharded or context.reducers or context.averaging):
        warnings.warn(
            "no optimizer is in training.State or was given to training.prepare: the workers' gradients are not added "
            "up, unless this cell does it itself (hvd.DistributedOptimizer, hvd.DistributedGradientTape)",
            stacklevel=4,
        )

    def attempt() -> _Result:
        pace.new_group()
        commits.sync()
        group.synced()
        result = function(state, *args, **kwargs)
        context.require_group()
        return result

    with _training(state, group):
        commits.begin()
        translated(group.enter)
        if group.provisional:
            raise Overtaken
        while True:
            lost = False
            try:
                result = translated(attempt)
            except PeerLost:
                reporter.forget()  # the state goes back to the last commit: later reports will come again
                group.lost()
                lost = True
            except MembershipChanged:
                commits.leave()
            else:
                if link.current is not None and group.size() > 1:
                    link.current.leave()
                return result
            reporter.new_group()
            commits.drop()
            if lost:
                commits.restore()
            group.leave()
            translated(group.join)
            commits.reset()


@contextlib.contextmanager
def _training(state: State, group: Group) -> Iterator[None]:
    with context.training(state, group):
        try:
            yield
            reporter.flush()
        except Exception as problem:
            taken = context.given
            # A whole batch of one sample gets the note only for PyTorch's BatchNorm, known by its words.
            least = 0 if "more than 1 value" in str(problem) else 1
            if taken is not None and len(taken.indices) == 1 and taken.batch > least:
                problem.add_note(
                    f"note: this worker had 1 sample of a batch of {taken.batch} here, and BatchNorm, for one, needs "
                    "more: training.batches(..., drop_last=True) leaves a small last batch out, least=2 lets no worker "
                    "have fewer, where the batch has them and micro_batch lets them be"
                )
            raise
        finally:
            reporter.forget()


# --- warm-up step -----------------------------------------------------------------------------------------------------


def warm_up_step(
    function: Callable[..., Any], group: Group, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Run the function for one step in private, and leave no trace of it in the state.

    The members of a group would stand still while a joining worker does everything for the first time: TensorFlow
    traces for a second and more. So the worker does it before it joins. Outside the state a step is no secret: a list
    that the function appends to has one value more on that worker. An error here would be one in the group, and so
    keeps this worker out of it, unless a library's own collective fails, which has no other members here.
    """
    commits = commits_of(state)
    before = commits.encoded()
    generators = _generators()
    try:
        with context.training(state, group, warming_up=True), contextlib.redirect_stdout(io.StringIO()):
            warm_up()
            commits.build()
            function(state, *args, **kwargs)
    except StepWarmedUp:
        pass
    except Exception as problem:
        own = getattr(sys.modules.get(type(group).__module__), "__file__", None)
        files = [frame.filename for frame in traceback.extract_tb(problem.__traceback__)]
        if not any(file == own or _ALONE.search(file) for file in files):
            raise
        sys.stderr.write(f"(the private first step ended early: {type(problem).__name__}: {problem})\n")
    finally:
        commits.drop()
        commits.reset()
        commits.decode(before)
        for put_back, drawn in generators:
            put_back(drawn)
        reporter.forget()


def uses_batches(code: types.CodeType) -> bool:
    """Return True if a function calls `batches`, by which a warm-up step ends; others would run to their end."""
    return "batches" in code.co_names or any(
        uses_batches(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)
    )


def workload(code: types.CodeType) -> hashlib.blake2b:
    """Return a hash of a training function's code, not of constants such as the number of epochs."""
    known = hashlib.blake2b(code.co_code + " ".join(code.co_names).encode(), digest_size=8)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            known.update(workload(inner).digest())
    return known


def _generators() -> list[tuple[Callable[[Any], None], Any]]:
    legacy = np.random.mtrand._rand
    kept: list[tuple[Callable[[Any], None], Any]] = [
        (random.setstate, random.getstate()),
        (lambda kept: setattr(legacy._bit_generator, "state", kept), legacy._bit_generator.state),
    ]
    kept += [(f.set_random_state, f.random_state()) for f in frameworks()]
    return kept
