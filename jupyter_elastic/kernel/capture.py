"""Captures a cell for its workers: its source, the names that it reads, the environment. Runs nothing.

Knows cloudpickle; must not know IPython, sockets or the daemon. `analysis` finds the names that a cell needs; this
module turns them into bytes, with a size for each.
"""

from __future__ import annotations

import builtins
import functools
import linecache
import os
import re
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from rich.filesize import decimal as human

from jupyter_elastic.jobfiles import names_used
from jupyter_elastic.jobfiles.payload import ANCHOR, OWN, Payload
from jupyter_elastic.jobfiles.sessions import SessionRequest
from jupyter_elastic.jobfiles.submit_environment import NOT_SENT, SENT_STARTS, environment, search_path
from jupyter_elastic.kernel import analysis, names_in_texts
from jupyter_elastic.platform import processes
from jupyter_elastic.types.errors import PackagingError

HUGE = 1024**3
"""Bytes above which a name is refused."""
LARGE = 100 * 1000**2
"""Bytes above which a name gets a warning."""
SOURCES = 200_000
"""Maximum characters of earlier cells that are sent, for the lines of their functions in tracebacks."""
TOTAL = 2 * 1024**3
"""Bytes of all names together above which they are refused."""

_SHELL_NAMES = frozenset({
    "In", "Out", "exit", "quit", "get_ipython", "open", "_", "__", "___", "_dh", "_oh", "_ih",
    "__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtin__", "__builtins__",
})  # fmt: skip
_ENV_MISSED = (
    "KAGGLE_", "COMET_", "NEPTUNE_", "CLEARML_", "HUGGINGFACE", "HUGGING_FACE_", "OPENAI_", "DATASETS_", "DIFFUSERS_",
    "ACCELERATE_", "LIGHTNING_", "JAX_",
)  # fmt: skip
"""Prefixes of variables that workers may need and that are not sent by default."""
_PROXIES = frozenset({"http_proxy", "https_proxy", "no_proxy", "all_proxy", "grpc_proxy", "no_grpc_proxy"})
_READS = re.compile(r"""\benviron(?:\.get\(|\[)\s*['"](\w+)['"](?!\s*\]\s*=[^=])|\bgetenv\(\s*['"](\w+)['"]""")
"""Pattern of variables that a cell reads and does not set."""


_CACHES = (functools.cached_property, functools._lru_cache_wrapper)
_OF_CLASSES = (types.FunctionType, staticmethod, classmethod, property, *_CACHES)
"""Types of class attributes that may have code."""


class Captured(Struct, frozen=True, kw_only=True):
    """A captured name in the report."""

    name: str
    kind: str
    """`value`, `code` (a function or class of the notebook) or `import` (a module: imported again, not sent)."""
    type: str
    size: int
    """Bytes when sent alone; a part that two names share is sent once but counts for both."""


class Package(Struct, frozen=True, kw_only=True):
    """A cell ready to be queued."""

    payload: Payload
    captured: tuple[Captured, ...] = ()
    folder_copy: bytes = b""
    """The tar of `--with`'s folder."""
    notes: tuple[str, ...] = ()
    """Notes for the person, shown before the cell is queued."""

    @property
    def size(self) -> int:
        """Bytes of the captured names."""
        return len(self.payload.names)


def package(  # noqa: PLR0913
    source: str,
    namespace: Mapping[str, Any],
    *,
    filename: str,
    code_name: str = "",
    first_line: int = 1,
    capture: Iterable[str] | None = None,
    out: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    seed: int | None = None,
    labels: Mapping[str, str] | None = None,
    session: SessionRequest | None = None,
    kept: Collection[str] = (),
) -> Package:
    """Package a cell that was written against `namespace`.

    Args:
        source: The cell's text; IPython's own lines in it are turned into Python.
        namespace: The notebook's names.
        filename: Name of the cell in tracebacks.
        code_name: File name of the cell's code; empty: `filename`.
        first_line: Number in the cell of the first line of `source`.
        capture: Names to capture instead of those that the text reads; `()`: none.
        out: Names whose values come back.
        env: Variables of the workers, beside those of `environment`.
        seed: Seed of rank 0's random numbers; None: each worker has its own.
        labels: Names for people of the files in which the notebook's functions were written.
        session: The session that the cell is for.
        kept: Names that the session has; unless `capture` contains them, the session's values stay.

    Raises:
        PackagingError: A name can't travel, or the cell never sets one of `out`; the message says what to do.
    """
    out = tuple(dict.fromkeys(out))
    cell = analysis.read(source, filename=filename, first_line=first_line)
    notes = list(cell.notes)
    if capture is None:
        there = {name: value for name, value in namespace.items() if name not in kept}
        wanted = _closure(_known(cell.needs, there), namespace)
        if own := sorted(set(_known(cell.needs, namespace)) - there.keys()):
            notes.append(f"the session's own {', '.join(own)}, not the notebook's; --in replaces what is there")
    else:
        wanted = _closure(_asked_for(capture, namespace), namespace)
    # A name that the cell may set before it reads it is captured if it can be pickled, and left out otherwise.
    doubtful = cell.sets if capture is None else frozenset()
    captured, values = _capture(wanted, namespace, doubtful, notes)
    if capture is None and not cell.open_ended and session is None and (nowhere := _nowhere(cell, namespace)):
        notes.append(f"neither the notebook nor the cell has {', '.join(f'`{name}`' for name in nowhere)}")
    uses = {_resolved(name, namespace) for name in names_used.in_text(cell.source)}
    notes += _in_texts(cell, uses, {name: value for name, value in namespace.items() if name not in values})
    missing = [name for name in out if name not in cell.sets and name not in values]
    if missing and not cell.open_ended and session is None:
        raise PackagingError(
            f"--out {missing[0]}: the cell never sets `{missing[0]}`. Set it in the cell, or correct the name."
        )
    given = {**environment(os.environ), **(env or {})}
    early = _early(cell, env or {}, given, notes)
    payload = Payload(
        source=cell.source,
        filename=code_name or filename,
        label=filename,
        first_line=first_line,
        names=_dump(values, namespace, uses),
        uses=tuple(sorted(uses)),
        out=out,
        env={**given, **early},
        sys_path=search_path(),
        workdir=str(Path.cwd()),
        sources=_sources(values, namespace, labels or {}),
        kernel=processes.this_process(),
        seed=seed,
        session=None if session is None else replace(session, reads=tuple(sorted(cell.needs))),
    )
    return Package(payload=payload, captured=tuple(captured), notes=tuple(notes))


def _early(
    cell: analysis.AnalysedCell, env: Mapping[str, str], given: Mapping[str, str], notes: list[str]
) -> dict[str, str]:
    """Return variables that the cell sets and that frameworks read when they are loaded."""
    wanted = cell.variables.items()
    early = {name: value for name, (value, default) in wanted if name not in env and not (default and name in given)}
    if early:
        settings = ", ".join(f"{name}={value}" for name, value in early.items())
        notes.append(f"set before the workers load their frameworks, as in the cell: {settings}")
    return early


def notable_variables(env: Mapping[str, str]) -> list[str]:
    """Return the sent variables that a report names: those of libraries and services, not of the system."""
    return sorted(name for name in env if name.startswith(SENT_STARTS) or name.lower() in _PROXIES)


def variables_not_sent(payload: Payload, environ: Mapping[str, str]) -> list[str]:
    """Return variables set here that are not sent and may be needed: those that the cell reads, and well-known ones."""
    read = [first or second for first, second in _READS.findall(payload.source)]
    known = [name for name in environ if name.startswith(_ENV_MISSED)]
    gone = NOT_SENT | payload.env.keys()
    return [name for name in dict.fromkeys([*read, *sorted(known)]) if name in environ and name not in gone]


# --- which names ------------------------------------------------------------------------------------------------------


def _asked_for(asked: Iterable[str], namespace: Mapping[str, Any]) -> Iterator[str]:
    for name in asked:
        if name not in namespace:
            raise PackagingError(f"--in {name}: the notebook has no `{name}`; run the cell that defines it first")
        yield name


def _nowhere(cell: analysis.AnalysedCell, namespace: Mapping[str, Any]) -> list[str]:
    """Return names that the cell reads and nothing is known to set."""
    known = {*dir(builtins), *_SHELL_NAMES, *OWN, *cell.sets, *namespace}
    return [name for name in cell.needs if name not in known]


def _in_texts(cell: analysis.AnalysedCell, uses: Collection[str], stays: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note on names of the notebook that only a text of the cell reads, and that are not sent."""
    names = sorted(
        {
            name
            for name, table in names_in_texts.found(cell.source, uses)
            if name in _known(stays, stays) and (not table or hasattr(stays[name], "columns"))
        }
    )
    if names:
        which = " and ".join(f"`{name}`" for name in names)
        yield f"{which} stands in a text only and stays here: name it in the cell too, or send it by --in {names[0]}"


def _known(names: Iterable[str], namespace: Mapping[str, Any]) -> list[str]:
    return [name for name in names if name in namespace and name not in _SHELL_NAMES]


def _closure(names: Iterable[str], namespace: Mapping[str, Any]) -> list[str]:
    """Return the names, and all names of the notebook that their functions and classes read, recursively."""
    found: dict[str, None] = {}
    todo = list(names)[::-1]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found[name] = None
        for code in _codes(namespace[name], namespace):
            todo += _known(sorted(set(names_used.globals_read(code))), namespace)
    return list(found)


def _codes(value: Any, namespace: Mapping[str, Any]) -> Iterator[types.CodeType]:  # noqa: C901, PLR0912  a case for each kind of value
    """Yield the code of a notebook's function, class or instance of such a class."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _codes(part, namespace)
    if isinstance(value, _CACHES):
        value = getattr(value, "__wrapped__", None) or getattr(value, "func", None)
    if isinstance(value, property):
        for function in (value.fget, value.fset):
            yield from _codes(function, namespace) if function is not None else ()
    elif isinstance(value, types.FunctionType):
        if value.__globals__ is namespace:
            yield value.__code__
        wrapped = getattr(value, "__wrapped__", None)
        yield from _codes(wrapped, namespace) if wrapped is not None else ()
    elif isinstance(value, types.MethodType):
        yield from _codes(value.__func__, namespace)
        yield from _codes(type(value.__self__), namespace)
    else:
        kind = value if isinstance(value, type) else type(value)
        if kind.__module__ == namespace.get("__name__", "__main__"):
            for part in vars(kind).values():
                if isinstance(part, _OF_CLASSES):
                    yield from _codes(part, namespace)


def _sources(
    values: Mapping[str, Any], namespace: Mapping[str, Any], labels: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return the texts in which the functions of these values were written, if only this process has them."""
    found: dict[str, tuple[str, str]] = {}
    left = SOURCES
    for name in {code.co_filename: None for value in values.values() for code in _codes(value, namespace)}:
        text = "".join(linecache.getlines(name)) if name in linecache.cache else ""
        if text and len(text) <= left:
            found[name] = (labels.get(name, name), text)
            left -= len(text)
    return found


# --- values to bytes --------------------------------------------------------------------------------------------------


class _TooBig(Exception):
    pass


class _Counter:
    """A file object that only counts bytes, and raises beyond a limit."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Any) -> int:
        length = memoryview(data).nbytes
        self.size += length
        if self.size > HUGE:
            raise _TooBig
        return length


def _capture(
    names: Iterable[str], namespace: Mapping[str, Any], doubtful: frozenset[str], notes: list[str]
) -> tuple[list[Captured], dict[str, Any]]:
    captured: list[Captured] = []
    values: dict[str, Any] = {}
    for name in names:
        value = namespace[name]
        try:
            size = _size(name, value)
        except PackagingError:
            if name not in doubtful:
                raise
            notes.append(f"`{name}` of the notebook can't travel and is left out: the cell sets its own")
            continue
        if size > LARGE:
            notes.append(
                f"`{name}` is large ({human(size)}) and is copied to every worker; loading it in the cell is faster"
            )
        values[name] = value
        captured.append(Captured(name=name, kind=_kind(value, namespace), type=_type_name(value), size=size))
    return captured, values


def _kind(value: Any, namespace: Mapping[str, Any]) -> str:
    if isinstance(value, types.ModuleType):
        return "import"
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return "code" if value.__module__ == namespace.get("__name__", "__main__") else "import"
    return "value"


def _type_name(value: Any) -> str:
    if isinstance(value, (types.ModuleType, types.FunctionType, type)):
        return "module" if isinstance(value, types.ModuleType) else "class" if isinstance(value, type) else "function"
    shape = getattr(value, "shape", None)
    name = type(value).__name__
    try:
        return f"{name} {'x'.join(str(int(n)) for n in shape)}" if shape else name
    except (TypeError, ValueError):
        return name


def _size(name: str, value: Any) -> int:
    """Return the value's bytes when sent alone; PackagingError with advice when it can't be sent."""
    from jupyter_elastic.jobfiles import code_by_value

    counter = _Counter()
    try:
        code_by_value.Pickler(counter).dump(value)
    except _TooBig:
        raise PackagingError(
            f"`{name}` is over {human(HUGE)} and would be copied to every worker. Load it inside the cell (each worker "
            "then reads its own part), or leave it out: --in with the names to send, or --no-capture. Nothing was "
            "queued."
        ) from None
    except Exception as problem:
        raise PackagingError(
            f"`{name}` ({_type_name(value)}) can't travel to the workers: {_why(problem)}. Make it inside the cell, or "
            f"leave it out: --in with the names to send, or --no-capture. Nothing was queued."
        ) from problem
    return counter.size


def _why(problem: Exception) -> str:
    text = " ".join(str(problem).split())
    return text[:300].rstrip(".") or type(problem).__name__


def _resolved(name: str, namespace: Mapping[str, Any]) -> str:
    """Return a cell's name as the notebook resolves it: `.hvd.init` becomes `horovod.torch.init`."""
    head, dot, rest = name.removeprefix(".").partition(".")
    known = names_used.dotted(namespace.get(head)) if name.startswith(".") else ""
    return f"{known}{dot}{rest}" if known else name


def _dump(values: Mapping[str, Any], namespace: Mapping[str, Any], uses: set[str]) -> bytes:
    from jupyter_elastic.jobfiles import code_by_value

    package: dict[str, Any] = dict(values)
    if isinstance(namespace, dict) and any(isinstance(v, (types.FunctionType, type)) for v in values.values()):
        anchor = types.FunctionType(_nothing.__code__, namespace, ANCHOR)
        anchor.__module__ = str(namespace.get("__name__", "__main__"))
        package = {ANCHOR: anchor, **package}  # the anchor comes first, as the reader expects
    try:
        data = code_by_value.dumps(package, uses)
    except Exception as problem:
        raise PackagingError(f"the captured names can't travel together: {_why(problem)}. Use --in.") from problem
    if len(data) > TOTAL:
        raise PackagingError(
            f"the captured names are {human(len(data))} together, over {human(TOTAL)}. Load data inside the cell, or "
            "name what to send with --in. Nothing was queued."
        )
    return data


def _nothing() -> None:
    """Serve as the anchor's code, which reads no name, so that none is captured with it."""
