"""The worker's half: calls one function after the other, and leaves the results on disk.

The job's own user has written all that is unpickled here into a private folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import pickle
import signal
import threading
import time
import traceback
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, cast

import msgspec

from jupyter_elastic.jobfiles import call_files as files
from jupyter_elastic.jobfiles import code_by_value
from jupyter_elastic.jobfiles.call_files import CallKind, NamedCall, Raised, ResultKind
from jupyter_elastic.platform.python_path import PACKAGE
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.types.errors import ElasticError, described, message_of
from jupyter_elastic.worker import torchrun_environment
from jupyter_elastic.worker.plugin import WorkerFacilities

KEPT = 64
"""Maximum number of functions that a worker keeps ready."""
MAX_TEXT = 100_000
"""Maximum characters of a traceback or message that are kept."""
_OURS = str(PACKAGE) + os.sep
_PLAIN = (int, float, str, bytes, bool, types.NoneType)
_current: FunctionsWorker | None = None


class FunctionsWorker:
    """One worker's calls: taken by the thread that listens to the driver, run by the main thread."""

    preimports: ClassVar[dict[str, tuple[str, ...]]] = {}
    groups = None

    def __init__(self, host: WorkerFacilities) -> None:
        self._host = host
        self._channel = host.channel
        self._order = host.channel.start
        self._news = threading.Condition()
        self._calls: deque[tuple[int, int]] = deque()
        self._leaving = False
        self._cancelled = False
        self._functions: OrderedDict[int, Callable[..., Any]] = OrderedDict()

    def install(self) -> None:
        """Take calls from now on.

        A call is a program of its own: by torchrun's variables a library would take it for a member of a group with
        whatever the other workers call at the time.
        """
        global _current
        for name in torchrun_environment.torchrun(rank=0, size=1, local_rank=0, port=1):
            os.environ.pop(name, None)
        _current = self
        files.calling = True
        self._channel.on_calls = self._take
        self._channel.on_update = self._leave

    def serve(self) -> None:
        """Run calls until this worker is to leave."""
        folder = self._host.session.folder
        self._read = files.Calls(folder).read
        self._begin = files.BegunCalls(folder).begin
        self._results = files.ResultWriter(folder, f"{self._order.attempt}.{self._order.name}")
        signal.signal(signal.SIGINT, self._cancel)
        ran: list[int] = []
        since = 0.0
        while True:
            if (call := self._next()) is not None:
                since = since if ran else time.perf_counter()
                self._run(*call)
                ran.append(call[0])
                continue
            if ran:
                self._results.sync()
                self._channel.send(messages.CallsRan(calls=tuple(ran), busy_s=time.perf_counter() - since))
                ran = []
            if not self._wait():
                return

    # --- on the listening thread

    def _take(self, message: messages.RunCalls | messages.GiveBack) -> None:
        with self._news:
            if isinstance(message, messages.RunCalls) and not self._leaving:
                self._calls.extend(message.calls)
                self._news.notify()
                return
            back = message.calls if isinstance(message, messages.RunCalls) else tuple(self._calls)
            if isinstance(message, messages.GiveBack):
                self._calls.clear()
        self._channel.send(messages.GaveBack(calls=tuple(number for number, _ in back)))

    def _leave(self) -> None:
        with self._news:
            self._leaving = True
            self._news.notify()
        self._take(messages.GiveBack())

    # --- on the main thread

    def _cancel(self, *_: object) -> NoReturn:
        self._cancelled = True
        raise KeyboardInterrupt

    def _next(self) -> tuple[int, int] | None:
        with self._news:
            return self._calls.popleft() if self._calls else None

    def _wait(self) -> bool:
        """Wait for calls; return False when none will come."""
        with self._news:
            while not (self._calls or self._leaving):
                self._news.wait()
            return bool(self._calls)

    def _run(self, number: int, offset: int) -> None:
        if not self._begin(number):
            return
        try:
            kind, result = self._called(self._read(offset))
        except BaseException as problem:
            kind, result = ResultKind.RAISED, raised(problem)
        if self._cancelled:  # even if the function, or its pickling, has caught the interrupt
            raise KeyboardInterrupt
        self._results.write(number, kind, result)

    def _called(self, call: files.Call) -> tuple[ResultKind, bytes]:
        if call.kind == CallKind.NAMED:
            named = msgspec.msgpack.decode(call.body, type=NamedCall)
            return ResultKind.JSON, _as_json(_result(_named(named)(*named.args, **named.kwargs)))
        function = self._function(call.function)
        given = _loaded(call.body)
        if call.kind == CallKind.EACH:
            return ResultKind.PICKLED, dumped([_result(function(*arguments)) for arguments in given])
        return ResultKind.PICKLED, dumped(_result(function(*given[0], **given[1])))

    def _function(self, offset: int) -> Callable[..., Any]:
        found = self._functions.get(offset)
        if found is None:
            found = self._functions[offset] = _loaded(self._read(offset).body)
            if len(self._functions) > KEPT:
                self._functions.popitem(last=False)
        return found


def serve() -> None:
    """Run calls until this worker is to leave; ElasticError in a worker of another engine."""
    if _current is None:
        raise ElasticError("only the workers of the engine `functions` call functions: use elastic.submit")
    _current.serve()


class _Limited(io.BytesIO):
    """A buffer that raises as soon as more is written than a result may have."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > files.LARGEST:
            raise ElasticError(
                f"the result is over {files.LARGEST // 1024**2} MiB: write it to a file, and return the file's name"
            )
        return super().write(data)


def _result(value: Any) -> Any:
    """Return the result of a call; that of an `async def` is awaited, in an event loop of its own."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def _loaded(data: bytes) -> Any:
    """Unpickle `data`; report an object that ends its reader, so that it does not end the reader of the result."""
    try:
        return pickle.loads(data)  # noqa: S301 - see the module
    except Exception:
        raise
    except BaseException as problem:
        raise ElasticError(
            f"the function or an argument can't be read in the worker: {described(problem)}"
        ) from problem


def dumped(value: Any) -> bytes:
    """Return the value pickled. ElasticError says why it can't be."""
    if type(value) in _PLAIN and not (isinstance(value, str | bytes) and len(value) > files.LARGEST // 8):
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    file = _Limited()
    try:
        code_by_value.ResultPickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    except ElasticError:
        raise
    except BaseException as problem:
        raise ElasticError(
            f"the result, a {type(value).__name__}, can't be sent back ({described(problem)}); return its numbers or "
            "texts instead"
        ) from problem
    return file.getvalue()


def raised(problem: BaseException) -> bytes:
    """Return an exception in its kept form: its texts, and the exception itself if it can be pickled."""
    try:
        lines = traceback.TracebackException.from_exception(problem)
        lines.stack[:] = [frame for frame in lines.stack if not frame.filename.startswith(_OURS)]
        text = "".join(lines.format())
    except BaseException:  # the exception may be of a class that fails at anything
        text = described(problem)
    pickled = b""
    for strips in (False, True):
        with contextlib.suppress(BaseException):
            found = code_by_value.dumps(_stripped(problem) if strips else problem)
            pickle.loads(found)  # noqa: S301 - our own: some exceptions can't be made again
            pickled = found
            break
    told = Raised(
        type=type(problem).__name__,
        message=message_of(problem)[:MAX_TEXT],
        traceback=text[-MAX_TEXT:],
        pickled=pickled if len(pickled) <= files.LARGEST else b"",
    )
    return msgspec.msgpack.encode(told)


def _stripped(problem: BaseException) -> BaseException:
    """Return the exception without what can't be pickled, but of the same class, so that handlers catch it."""
    made = code_by_value.bare(type(problem), *[one if _travels(one) else repr(one) for one in problem.args])
    made.__dict__.update({name: value for name, value in vars(problem).items() if _travels(value)})
    return made


def _travels(value: Any) -> bool:
    with contextlib.suppress(ElasticError):
        return bool(dumped(value))
    return False


def _named(call: NamedCall) -> Callable[..., Any]:
    """Return the function of this name."""
    if call.source:
        namespace: dict[str, Any] = {"__name__": "__elastic_source__"}
        exec(compile(call.source, "<source>", "exec", dont_inherit=True), namespace)  # noqa: S102 - the owner's own
        found: Callable[..., Any] | None = namespace.get(call.function)
        if not callable(found):
            raise ElasticError(f"the source defines no function `{call.function}`; correct the name or the source")
        return found
    module, _, name = call.function.partition(":")
    value = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    if not callable(value):
        raise ElasticError(f"{call.function} is a {type(value).__name__}, no function")
    return cast("Callable[..., Any]", value)


def _as_json(value: Any) -> bytes:
    try:
        data = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise ElasticError(
            f"the result, a {type(value).__name__}, is no JSON ({problem}); return numbers, texts, lists and dicts"
        ) from problem
    if len(data) > files.LARGEST:
        raise ElasticError(f"the result is over {files.LARGEST // 1024**2} MiB: write it to a file")
    return data
