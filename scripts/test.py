"""Runs the whole suite: parts of it, each a pytest of its own, two at a time.

Most tests wait for processes that they have started, so two parts use two cores well. The browser tests have a pytest
of their own in any case, because Playwright holds an event loop open. A part's output is shown whole when it is over,
and what failed once more at the end. `STREAMS=1` runs one part after the other; words go to every pytest.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STREAMS = int(os.environ.get("STREAMS", "2"))
# The longest first, so that the streams end together.
FOLDERS = (
    *("browser", "unit", "e2e", "live/agent", "live/engine"),
    *("live/training", "live/daemon", "hub", "live/notebook", "server"),
)
PARTS: dict[str, list[str]] = {
    **{folder: [f"tests/{folder}"] for folder in FOLDERS},
    "the rest": [f"--ignore=tests/{folder}" for folder in FOLDERS],
}
NOTHING_FOUND = 5
"""What pytest says of a part of which the words chose no test."""


class Ended(NamedTuple):
    """A part that is over."""

    name: str
    code: int
    failures: list[str]
    """What pytest lists of them."""


class Streams:
    """Runs parts, so many at a time; told to stop, it interrupts those that run and begins no other."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self._lock = threading.Lock()
        """Of what follows, and of what is printed."""
        self._living: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, parts: dict[str, list[str]], at_once: int) -> list[Ended]:
        """Run these; what became of each that was begun."""
        with ThreadPoolExecutor(at_once) as threads:
            return [ended for ended in threads.map(self._part, parts, parts.values()) if ended is not None]

    def stop(self, *_: object) -> None:
        """As Ctrl-C in each pytest, which then ends what its tests have started. Only the first time counts."""
        # Elsewhere than in the handler's thread, which may be the one that has the lock.
        threading.Thread(target=self._interrupt).start()

    def _interrupt(self) -> None:
        with self._lock:
            if not self._stopped:
                self._stopped = True
                for process in self._living:
                    process.send_signal(signal.SIGINT)

    def _part(self, name: str, arguments: Iterable[str]) -> Ended | None:
        begun = time.monotonic()
        with tempfile.TemporaryFile() as output:
            with self._lock:
                if self._stopped:
                    return None
                print(f"== {name} begins", flush=True)
                process = subprocess.Popen(
                    [sys.executable, "-m", "pytest", "-q", "--durations=25", *arguments, *self.words],
                    cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True,  # a terminal's Ctrl-C would come twice, and the second ends the tidying
                )  # fmt: skip
                self._living.add(process)
            code = process.wait()
            with self._lock:
                self._living.remove(process)
                output.seek(0)
                lines = output.read().decode(errors="replace").splitlines()
                output.seek(0)
                print(f"== {name}", flush=True)
                shutil.copyfileobj(output, sys.stdout.buffer)
                print(f"== {name}: {time.monotonic() - begun:.0f} s", flush=True)
        return Ended(name, code, [line for line in lines if line.startswith(("FAILED ", "ERROR "))])


def main() -> int:
    """0 when every part passed."""
    words = sys.argv[1:]
    streams = Streams(words)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, streams.stop)
    ended = streams.run(PARTS, STREAMS)
    fine = {0, NOTHING_FOUND} if words else {0}
    failed = [part for part in ended if part.code not in fine]
    for part in failed:
        print("\n".join([f"failed: {part.name}", *part.failures]))
    if left := PARTS.keys() - {part.name for part in ended}:
        print(f"interrupted, not begun: {', '.join(sorted(left))}")
    return bool(failed or left)


if __name__ == "__main__":
    sys.exit(main())
