"""Holds an attempt's files on this host: the payload, the commits, and the copy of the notebook's folder.

Knows the files' messages; must not know workers, or how messages travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from jupyter_elastic.jobfiles import folder_copy
from jupyter_elastic.jobfiles.captures import FOLDER
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import PIECE, FromHostAgent
from jupyter_elastic.types.errors import ProtocolError


class AttemptFiles:
    """The attempt's files in the host agent's own `folder`; `send` sends a message to the driver."""

    def __init__(self, folder: Path, send: Callable[[FromHostAgent], Coroutine[Any, Any, None]]) -> None:
        self._folder = folder
        self._send = send
        self.job = folder / "job"
        """Stands for the job's folder, for the workers here."""
        self.job.mkdir(mode=0o700)
        self.commits = Commits(self.job)
        self._copied = ""
        """SHA-256 of the folder of which workers get a copy."""
        self._copying: asyncio.Task[str] | None = None

    def begin(self, copied: str) -> bool:
        """Prepare for workers in a copy of this folder, unless empty; return True if the driver must send the tar."""
        tar = folder_copy.kept(copied) if copied else None
        self._copied = copied
        if tar is not None:
            self._copying = asyncio.create_task(self._unpack(tar))
        return bool(copied) and tar is None

    async def copy(self) -> str:
        """Return the path of the folder's copy, once the copy is complete; empty if there is none."""
        return await self._copying if self._copying is not None else ""

    def put(self, name: str, data: bytes, *, last: bool) -> None:
        """Append data to a file; the last data make it the attempt's. OSError; ProtocolError for an unknown folder."""
        part = self._folder / f"{name}.part"
        with part.open("ab") as file:
            file.write(data)
        if name == FOLDER:
            if not self._copied or self._copying is not None or part.stat().st_size > folder_copy.LIMIT:
                raise ProtocolError("a folder came that nobody announced, or one over the limit")
            if last:
                self._copying = asyncio.create_task(self._unpack(part))
        elif last and name == "commit":
            self.commits.replace(part)
        elif last:
            part.rename(self.job / name)

    async def _unpack(self, tar: Path) -> str:
        """Unpack this attempt's own copy of the notebook's folder, and return its path."""

        def work() -> str:
            kept = tar if tar.suffix == ".tar" else folder_copy.keep(tar, self._copied)
            folder_copy.unpack(kept, self._folder / "copy")
            return str(self._folder / "copy")

        return await asyncio.to_thread(work)

    async def fetch(self) -> None:
        """Send the newest commit to the driver."""
        blob = self.commits.load()
        if blob is None:
            await self._send(messages.Commit(b"", last=True, found=False))
            return
        for start in range(0, max(1, len(blob)), PIECE):
            piece = bytes(blob[start : start + PIECE])
            await self._send(messages.Commit(piece, last=start + PIECE >= len(blob)))
