"""Where what a worker prints goes: into its rank's files, or apart while it is no rank yet."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jupyter_elastic.jobfiles import newcomer_output
from jupyter_elastic.platform import private_files
from jupyter_elastic.worker.display_recorder import recorder


class RankOutput:
    """File descriptors 1 and 2 go to `rank.N/stdout|stderr` and follow the rank from generation to generation."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rank = -1
        self._apart = ""

    def keep_apart(self, name: str) -> None:
        """What this worker prints is no rank's yet."""
        self._apart = name
        self._write_into(newcomer_output.folder(self._folder, name))

    def follow(self, rank: int) -> None:
        """From now on this worker writes into the files of `rank`; what was kept apart goes there too."""
        if rank == self._rank:
            return
        self._rank = rank
        self._write_into(self._folder / f"rank.{rank}")
        if self._apart:
            newcomer_output.merge(self._folder, self._apart, rank)
            self._apart = ""

    def drop(self) -> None:
        """What was kept apart was never said."""
        if self._apart:
            newcomer_output.merge(self._folder, self._apart, None)

    def _write_into(self, folder: Path) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        folder.mkdir(mode=0o700, exist_ok=True)
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            with private_files.open_private(folder / name, append=True) as file:
                os.dup2(file.fileno(), descriptor)
        recorder.follow(folder)
