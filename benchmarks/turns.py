"""`python -m benchmarks.turns FILE [OPTION ...]`: the daemon, with the processor time of each turn of its loop.

A turn is what nobody's ask comes between. Its processor time is the same on a busy machine, where an answer waits for
the processor too. SIGUSR1 begins anew, SIGUSR2 writes the seconds of all turns since then to FILE, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

from jupyter_elastic.scheduler.__main__ import main


def record(file: Path) -> None:
    """Measure every turn from now on."""
    run = asyncio.Handle._run
    turns: list[float] = []

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        turns.append(time.thread_time() - began)

    def write(*_: object) -> None:
        new = file.with_suffix(".new")
        new.write_text(json.dumps(turns))
        new.replace(file)

    asyncio.Handle._run = measured  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, lambda *_: turns.clear())
    signal.signal(signal.SIGUSR2, write)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
