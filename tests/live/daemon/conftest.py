"""A real daemon process in a pool of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.client import AsyncClient, Client
from jupyter_elastic.platform import endpoints
from jupyter_elastic.types import JobSpec

WAIT_S = 60.0


class IdleAgent(threading.Thread):
    """The agent of this user, which is there and does nothing: without one no job is started."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ready, self._loop, self._over = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
        self.start()
        assert self._ready.wait(WAIT_S)

    def run(self) -> None:
        self._loop.run_until_complete(self._stay())
        self._loop.close()

    async def _stay(self) -> None:
        async with AsyncClient(role="agent") as client:
            await client.welcomed.wait()
            self._ready.set()
            await self._over.wait()

    def close(self) -> None:
        """Leave."""
        if self.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self.join(WAIT_S)


class Pool:
    """The daemon of one pool folder: start, kill, stop, and clients for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder.parent / "daemon.log"
        self._clients: list[Client | IdleAgent] = []

    def start(
        self, *arguments: str, env: dict[str, str] | None = None, plain: bool = True, before: Sequence[str] = ()
    ) -> Pool:
        """Start the daemon and wait until it says where it is.

        `plain`: a new pool begins with the plainest policy. `before`: a command that runs the daemon's.
        """
        if plain and self.process is None and "--policy" not in arguments:
            arguments = ("--policy", "fifo", *arguments)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "jupyter_elastic.scheduler", "--slots", "4", *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **(env or {})},
            )  # fmt: skip
        limit = time.monotonic() + WAIT_S
        while True:
            found = endpoints.living_daemon()
            if found is not None and found.pid == self.process.pid:
                return self
            assert self.process.poll() is None, f"the daemon ended:\n{self.log.read_text()[-2000:]}"
            assert time.monotonic() < limit, "the daemon does not come up"
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(WAIT_S)

    def client(self, **options: Any) -> Client:
        """A client that is closed with the pool."""
        client = Client(**options)
        self._clients.append(client)
        return client

    def agent(self) -> IdleAgent:
        """An agent that is closed with the pool."""
        agent = IdleAgent()
        self._clients.append(agent)
        return agent

    def close(self) -> None:
        """End everything."""
        for client in self._clients:
            client.close()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)


@pytest.fixture
def pool(pool_dir: Path) -> Iterator[Pool]:
    """A pool whose daemon is not started yet."""
    found = Pool(pool_dir)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users of this machine reach."""
    with tempfile.TemporaryDirectory(prefix="je-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def spec() -> JobSpec:
    """A job that fits."""
    return JobSpec(name="job", folder="/tmp/none", python=sys.executable, min_slots=1, max_slots=2)
