"""Finds the output and results that workers add to their ranks' files."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from jupyter_elastic.protocol.host_agent_messages import PIECE, FromHostAgent, Output, ResultPart

STREAMS = ("stdout", "stderr", "display.jsonl")

Send = Callable[[FromHostAgent], Awaitable[None]]
"""Sends a message; returns when there is room for the next."""


class OutputReader:
    """Reads the files below a job's folder as they grow, and sends the new parts."""

    def __init__(self, folder: Path, send: Send) -> None:
        self._folder = folder
        self._send = send
        self._sent: dict[str, int] = {}
        self._results: dict[str, int] = {}
        self._reading = asyncio.Lock()

    async def send_new(self) -> None:
        """Send the output that ranks have written since the last call."""
        async with self._reading:
            for path in self._grown("rank."):
                await self._send_rest(path)

    async def send_last(self, name: str) -> None:
        """Send all output and results that the worker `name`, which is gone, has left."""
        async with self._reading:
            for path in [*self._grown("rank."), *self._grown(f"newcomer.{name}")]:
                await self._send_rest(path)
            for result in sorted((self._folder / "results").glob("rank.*.pickle")):
                inode = result.stat().st_ino
                if self._results.get(result.name) != inode:
                    self._results[result.name] = inode
                    await self._send_result(int(result.name.split(".")[1]), result)

    def _grown(self, prefix: str) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(prefix)]
            for name in sorted(names):
                for stream in STREAMS:
                    path = f"{name}/{stream}"
                    with contextlib.suppress(OSError):
                        if (self._folder / path).stat().st_size > self._sent.get(path, 0):
                            yield path

    async def _send_rest(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), (self._folder / path).open("rb") as file:
            file.seek(self._sent.get(path, 0))
            left = os.fstat(file.fileno()).st_size - file.tell()  # not what is written meanwhile: others wait too
            while left > 0 and (data := file.read(min(PIECE, left))):
                left -= len(data)
                self._sent[path] = file.tell()
                await self._send(Output(path, data))

    async def _send_result(self, rank: int, path: Path) -> None:
        with path.open("rb") as file:
            while True:
                data = file.read(PIECE)
                await self._send(ResultPart(rank, data, last=len(data) < PIECE))
                if len(data) < PIECE:
                    return
