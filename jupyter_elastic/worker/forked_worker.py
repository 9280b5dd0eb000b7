"""The forkserver of workers, which has frameworks imported ahead: `python -m jupyter_elastic.worker.forked_worker`."""

from __future__ import annotations

import importlib
import json
import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from jupyter_elastic.forkserver import forked_workers, server
from jupyter_elastic.training.frameworks import imported
from jupyter_elastic.types.errors import EngineError
from jupyter_elastic.worker import plugin, worker

ALWAYS = ("numpy", "jupyter_elastic.training")

log = logging.getLogger(__name__)
_began = dict(os.environ)
_set: dict[str, str] = {}
"""Variables that were set in it while the frameworks were loaded."""


def import_ahead(frameworks: Sequence[str]) -> None:
    """Import what workers will need, and do ahead what would slow down the first worker of each kind."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # TensorFlow's own notes would hide what a cell prints
    plugins = plugin.installed()
    ahead = [name for framework in frameworks for kind in plugins for name in kind.preimports.get(framework, ())]
    for name in (*ALWAYS, *frameworks, *ahead):  # modules that are not installed are left out
        try:
            importlib.import_module(name)
        except ImportError as problem:
            log.info("not imported: %s (%s)", name, problem)
        except Exception:
            log.exception("%s could not be imported", name)
    try:
        imported.frameworks()  # and which are installed: a worker would read that from all packages
    except EngineError:
        log.exception("a framework can't be joined")
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # imports torch._dynamo, about a second
    _set.update({name: value for name, value in os.environ.items() if _began.get(name) != value})
    _set.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch sets it by the user's TMPDIR, as soon as it needs it


def prepare() -> Callable[[socket.socket], int]:
    """Make this process a worker's; return the function that serves its connection."""
    worker.prepare()
    return begin


def begin(connection: socket.socket) -> int:
    """Take the job's whole environment, and be a worker of the job; return the exit code."""
    size = int.from_bytes(connection.recv(forked_workers.SIZE, socket.MSG_WAITALL), "big")
    if size:  # else the driver is gone
        given = json.loads(connection.recv(size, socket.MSG_WAITALL))
        kept = {name: value for name, value in _set.items() if given.get(name) == _began.get(name)}
        os.environ.clear()
        os.environ.update({**given, **kept})
        time.tzset()
        tempfile.tempdir = None  # forget the cached folder
    return worker.main(connection)


if __name__ == "__main__":
    sys.exit(server.main(import_ahead, prepare, adopts=True, spares=2))
