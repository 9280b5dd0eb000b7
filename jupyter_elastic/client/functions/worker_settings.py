"""Knows the settings that workers take over from this process, and which of its modules were edited.

Knows the process's environment, working folder and loaded modules; must not know calls and jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import types
from pathlib import Path
from typing import NamedTuple

from jupyter_elastic.jobfiles.submit_environment import environment, search_path
from jupyter_elastic.platform.python_path import PACKAGE

_INSTALLED = ("/site-packages/", "/dist-packages/", str(PACKAGE), str(Path(os.__file__).parent))
_path = ctypes.create_string_buffer(4096)
_getcwd = ctypes.PyDLL(None).getcwd
_getcwd.restype = ctypes.c_char_p


class ProcessSetting(NamedTuple):
    """The settings that workers take over from this process, as of each call's submit."""

    env: dict[str, str]
    path: tuple[str, ...]
    workdir: str
    authkey: bytes


class SettingReader:
    """Reads the settings, and keeps them until this process changes one."""

    def __init__(self) -> None:
        self._seen: tuple[object, ProcessSetting] | None = None

    def read(self) -> ProcessSetting:
        """Return the settings as they are now."""
        path, key = _working_folder(), b""
        if "multiprocessing.managers" in sys.modules:
            key = bytes(sys.modules["multiprocessing"].current_process().authkey)
        # The variables as CPython holds them: to ask for each of them takes longer than all else of a submit.
        now = (path, key, sys.path, vars(os.environ)["_data"])
        if self._seen is None or self._seen[0] != now:
            setting = ProcessSetting(environment(os.environ), search_path(), os.fsdecode(path), key)
            self._seen = (path, key, sys.path.copy(), now[-1].copy()), setting
        return self._seen[1]


def own_modules() -> dict[str, int]:
    """Return the modification time of each loaded module's file, without those of Python and installed packages."""
    found = {}
    for file in _own_files(len(sys.modules)):
        with contextlib.suppress(OSError):
            found[file] = os.stat(file).st_mtime_ns  # noqa: PTH116 - many files, before every batch of calls
    return found


@functools.lru_cache(maxsize=1)  # to look at thousands of modules takes longer than all else of a batch
def _own_files(modules: int) -> list[str]:  # noqa: ARG001 - how many are loaded
    plain = [vars(module) for module in list(sys.modules.values()) if type(module) is types.ModuleType]
    names = [file for module in plain if type(file := module.get("__file__")) is str]
    return [file for file in names if not any(part in file for part in _INSTALLED)]


def _working_folder() -> bytes:
    """Return `os.getcwdb()`, keeping the GIL: otherwise each submit would wait for the writing thread."""
    found: bytes | None = _getcwd(_path, len(_path))
    if found and found.startswith(b"/"):
        return found
    return os.getcwdb()  # noqa: PTH109 - the path is longer, or the folder is gone, which this call says
