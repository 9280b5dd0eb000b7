"""Directs a worker's output into its rank's files, or into separate ones while the worker has no rank yet."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jupyter_elastic.jobfiles import newcomer_output
from jupyter_elastic.platform import private_files
from jupyter_elastic.worker.display_recorder import recorder


class RankFiles:
    """Directs descriptors 1 and 2 to `rank.N/stdout|stderr`, and follows the rank from generation to generation."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rank = -1
        self._apart = ""

    def keep_apart(self, name: str) -> None:
        """Keep the output of this worker separate, as it has no rank yet."""
        self._apart = name
        self._write_into(newcomer_output.folder(self._folder, name))

    def follow(self, rank: int) -> None:
        """Write into the files of `rank` from now on; output that was kept separate moves there too."""
        if rank == self._rank:
            return
        self._rank = rank
        self._write_into(self._folder / f"rank.{rank}")
        if self._apart:
            newcomer_output.merge(self._folder, self._apart, rank)
            self._apart = ""

    def drop(self) -> None:
        """Discard the output that was kept separate."""
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
