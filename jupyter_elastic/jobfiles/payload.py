"""Reads and writes `payload.msgpack`: all that a worker needs to run a cell, written at submission.

Knows cloudpickle's bytes and the job's folder; `kernel.capture` makes the payload.
"""

from __future__ import annotations

import errno
import functools
import io
import pickle
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from jupyter_elastic.jobfiles import captures
from jupyter_elastic.jobfiles.captures import FOLDER, PAYLOAD
from jupyter_elastic.jobfiles.cell_hints import CellText
from jupyter_elastic.jobfiles.sessions import SessionRequest
from jupyter_elastic.platform.private_files import write_private
from jupyter_elastic.types.errors import PackagingError

SOURCE = "cell.py"
_OLD_SHELL, _SHELL = "__import__('jupyter_elastic.shell', ", "__import__('jupyter_elastic.worker.shell', "
"""Start of the call that runs `!command` lines, in the first version and now."""
ANCHOR = "__elastic_anchor__"
"""Name of a function whose globals are the one dict that all functions of the notebook share."""
OWN = frozenset({"rank", "world_size", "local_rank", "device", "display"})
"""Names that each worker has of its own."""


class Payload(Struct, frozen=True, kw_only=True):
    """The data that a worker needs to run the cell; written as `payload.msgpack` into the job's folder."""

    source: str
    """The cell's Python text, IPython lines already turned into Python."""
    filename: str
    """File name of the code: the kernel's for the same text, or the script."""
    label: str = ""
    """Name of that file for people: `<In[5]>`; empty: `filename`."""
    first_line: int
    """Line number, in the cell, of the first line of `source` (the magic stands above it)."""
    names: bytes
    """cloudpickle of a dict: captured name -> value. `restore_namespace` turns it into the cell's namespace.

    Large names are a file of their own (`captures`) and this is empty; `read_payload` puts both together.
    """
    out: tuple[str, ...] = ()
    """Names whose values come back."""
    env: dict[str, str] = {}
    """Environment variables to set before anything is imported."""
    sys_path: tuple[str, ...] = ()
    workdir: str = ""
    copied: str = ""
    """SHA-256 of the tar of `workdir` that other hosts get; empty: they have the folder itself."""
    authkey: bytes = b""
    """multiprocessing's key of a packaging process with managers, so that their proxies work in workers."""
    kernel: tuple[int, float] | None = None
    """Packaging process by pid and start time: its forkservers are kept while it lives."""
    seed: int | None = None
    """Rank r seeds every generator with `seed + r`; None: each worker has random numbers of its own."""
    resumable: bool = False
    """True if the cell goes on from its own checkpoint when all workers are ended and started anew."""
    sources: dict[str, tuple[str, str]] = {}
    """By file name of captured functions: the file's name for people, and its text, for tracebacks."""
    argv: tuple[str, ...] = ()
    """A script's `sys.argv`; empty for a cell."""
    session: SessionRequest | None = None
    """The session whose workers run the cell; None: workers of its own."""
    uses: tuple[str, ...] | None = None
    """Dotted names that the cell and its captured names use (`names_used`); None: only the text tells."""
    cell: CellText | None = None
    """Reading of the cell's text, made when its engine was chosen; None: an older version has submitted the cell."""

    @property
    def labels(self) -> dict[str, str]:
        """Names for people of the files of the cell's code and of captured functions, by file name."""
        return {name: label for name, (label, _) in self.sources.items()} | {self.filename: self.label or self.filename}


def read_payload(folder: Path) -> Payload:
    """Read the payload of the job in this folder. OSError if unreadable; msgspec.DecodeError if damaged."""
    payload = msgspec.msgpack.decode((folder / PAYLOAD).read_bytes(), type=Payload)
    if _OLD_SHELL in payload.source:
        payload = msgspec.structs.replace(payload, source=payload.source.replace(_OLD_SHELL, _SHELL))
    if not payload.names:  # names in the payload are never empty bytes, not even for no names
        payload = msgspec.structs.replace(payload, names=(folder / captures.NAMES).read_bytes())
    return payload


def restore_namespace(payload: Payload, namespace: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the cell's namespace, that of `__main__`. Only ever called by the job's own user: it unpickles.

    The namespace is the very dict that functions of the notebook see as their globals, so that a cell which sets a name
    changes what they read, as it would in the notebook.
    """
    if payload.authkey:
        import multiprocessing

        multiprocessing.current_process().authkey = payload.authkey
    namespace = {} if namespace is None else namespace
    namespace.update(load_names(io.BytesIO(payload.names), namespace))
    return namespace


def load_names(file: IO[bytes], namespace: dict[str, Any]) -> dict[str, Any]:
    """Unpickle names; the notebook's functions among them get `namespace` as their globals.

    Names that these functions read are added to `namespace` if missing. Only ever called by the job's own user.
    """
    names: dict[str, Any] = _Unpickler(file, namespace).load()
    names.pop(ANCHOR, None)
    return names


class ClassUnpickler(pickle.Unpickler):
    """An unpickler that reuses this process's class of the same id.

    cloudpickle would make a new class at each read, and drop it although its base may have put it into a registry.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.here: list[Any] = []
        """Classes that existed before."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the function or class of this name, with a lookup before cloudpickle's functions that make a class."""
        found = super().find_class(module, name)
        if module.startswith("cloudpickle") and name.startswith("_make_skeleton_"):
            return functools.partial(self._known, found, sys.modules[module])
        return found

    def _known(self, make: Callable[..., Any], cloudpickle: Any, *args: Any) -> Any:
        found = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(args[-2])
        if found is None:
            return make(*args)
        self.here.append(found)
        return found


class _Unpickler(ClassUnpickler):
    """An unpickler that gives the notebook's functions another dict as their globals than cloudpickle's new one."""

    def __init__(self, file: IO[bytes], namespace: dict[str, Any]) -> None:
        super().__init__(file)
        self._namespace = namespace
        self._sent: dict[str, Any] | None = None

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the function or class of this name; replace cloudpickle's functions that make a function."""
        found = super().find_class(module, name)
        if module.startswith("cloudpickle"):
            if name == "_make_function":
                return functools.partial(self._make, found)
            if name == "_function_setstate":
                return functools.partial(self._fill, found)
        return found

    def _make(self, make: Callable[..., Any], code: Any, globals_: dict[str, Any], *more: Any) -> Any:
        if self._sent is None and globals_.get("__name__") == "__main__":  # the first one is the anchor's
            self._sent = globals_
        return make(code, self._namespace if globals_ is self._sent else globals_, *more)

    def _fill(self, fill: Callable[..., Any], function: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
        if function.__globals__ is self._namespace:
            read = state[1]["__globals__"]
            state[1]["__globals__"] = {name: value for name, value in read.items() if name not in self._namespace}
        fill(function, state)


def create_job_folder(payload: Payload, root: Path, folder_copy: bytes = b"") -> Path:
    """Write the job's folder (0700, files 0600) under `root`; PackagingError when the disk is full or not ours.

    `folder_copy` is the tar whose digest is the payload's `copied`.
    """
    folder = root / uuid.uuid4().hex
    try:
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(mode=0o700)
        write_private(folder / SOURCE, payload.source.encode())
        if len(payload.names) >= captures.LARGE:
            captures.store(payload.names, folder)
            payload = msgspec.structs.replace(payload, names=b"")
        if folder_copy:
            captures.store(folder_copy, folder, FOLDER)
        write_private(folder / PAYLOAD, msgspec.msgpack.encode(payload))
    except OSError as problem:
        why = "the disk is full" if problem.errno == errno.ENOSPC else str(problem)
        raise PackagingError(
            f"the job's folder {folder} can't be written: {why}. Free some space there, or set JUPYTER_ELASTIC_DIR to "
            "another place. Nothing was queued."
        ) from problem
    return folder


def remove_job_folder(folder: Path) -> None:
    """Remove the folder of a refused job."""
    shutil.rmtree(folder, ignore_errors=True)
