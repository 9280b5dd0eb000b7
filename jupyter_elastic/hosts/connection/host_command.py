"""Runs the command that reaches a host: its stdin and stdout are the host agent's, its stderr explains failures.

Knows the command's process and its streams; must not know what the messages mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from jupyter_elastic.forkserver.fork_client import started
from jupyter_elastic.hostfiles.host_providers import AgentCommand, Target
from jupyter_elastic.platform import paths, processes
from jupyter_elastic.protocol.host_agent_messages import MAGIC, MAX_BEFORE, PIECE, TO_HOST_AGENT, ToHostAgent
from jupyter_elastic.types.errors import EngineError

KEPT_BYTES = 500
"""Maximum number of bytes of unexpected output that are quoted in an error."""
LAST_WORDS_S = 0.5
"""Seconds to wait for the command's stderr, when the command has ended without a host agent's answer."""
KEPT_LINES = 5
"""Maximum number of lines of the command's stderr that are kept for an error."""

log = logging.getLogger(__name__)


class HostCommand:
    """The command that reaches one host; `spawn` runs a task for as long as the connection lives."""

    child: asyncio.subprocess.Process
    """The running command, once `run` has returned."""

    def __init__(self, target: Target, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._target = target
        self._name = target.host.name
        self._spawn = spawn
        self._known: processes.ProcessId | None = None
        self.runs = False
        """True when the command was started."""
        self._said: deque[str] = deque(maxlen=KEPT_LINES)
        self._keeping: asyncio.Task[None]

    @property
    def stdout(self) -> asyncio.StreamReader:
        """The stream of the host agent's messages."""
        assert self.child.stdout is not None
        return self.child.stdout

    async def run(self, python: str) -> AgentCommand:
        """Start the command, and return it; the host agent's interpreter is that of the workers. EngineError."""
        agent = [self._target.host.python or python or sys.executable, "-P", "-m", "jupyter_elastic.host_agent"]
        command = self._target.command(agent, paths.runtime_dir())
        try:
            self.child = await asyncio.create_subprocess_exec(
                *command.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=MAX_BEFORE,
                start_new_session=True,
                env=command.env,
            )
        except OSError as problem:
            raise EngineError(f"host {self._name}: {command.argv[0]} can't be started: {problem.strerror}") from problem
        self.runs = True
        with contextlib.suppress(ProcessLookupError):  # the command has ended already
            self._known = processes.identify(self.child.pid)
        started.add(self.child.pid)
        self._keeping = self._spawn(self._keep_stderr())
        self._spawn(self._reap())
        return command

    def send(self, message: ToHostAgent) -> None:
        """Send a message, if the command still reads."""
        if self.child.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self.child.stdin.write(TO_HOST_AGENT.encode(message))

    async def drain_stdin(self) -> None:
        """Return when the command has room for more messages."""
        assert self.child.stdin is not None
        with contextlib.suppress(OSError):
            await self.child.stdin.drain()

    async def skip_to_magic(self) -> str:
        """Return the output before `MAGIC`. EngineError when `MAGIC` does not come."""
        try:
            return (await self.stdout.readuntil(MAGIC))[: -len(MAGIC)].decode(errors="replace")
        except asyncio.IncompleteReadError as ended:
            printed = ended.partial
            await asyncio.wait([self._keeping], timeout=LAST_WORDS_S)
        except asyncio.LimitOverrunError:
            printed = await self.stdout.read(KEPT_BYTES)
        text = printed[-KEPT_BYTES:].decode(errors="replace").strip()
        what = f" (what came was: {text!r})" if text else ""
        words = self.last_words()
        advice = self._target.explain(words)
        raise EngineError(f"no host agent answers on host {self._name}{what}{words}{advice}")

    def last_words(self) -> str:
        """Return what the command has said last on its stderr, after a colon; empty if it said nothing."""
        return f": {' / '.join(self._said)}" if self._said else ""

    async def _keep_stderr(self) -> None:
        assert self.child.stderr is not None
        with contextlib.suppress(OSError):
            while True:
                try:
                    line = await self.child.stderr.readline()
                except ValueError:  # a line without an end
                    continue
                if not line:
                    return
                text = line.decode(errors="replace").strip()[:300]
                self._said.append(text)
                log.info("host %s: %s", self._name, text)

    async def drain(self) -> None:
        """Read unwanted output, so that the pipe is closed."""
        with contextlib.suppress(OSError):
            while await self.stdout.read(PIECE):
                pass

    async def ended(self) -> None:
        """Return when the command has ended.

        Python 3.11's `wait` also waits until nobody holds the command's pipes, as what ssh leaves behind may do.
        """
        if self._known is not None:
            await processes.gone(self._known)
        while self.child.returncode is None:  # noqa: ASYNC110 - a thread of asyncio reaps it
            await asyncio.sleep(0.01)

    async def _reap(self) -> None:
        await self.ended()
        started.discard(self.child.pid)

    async def end(self, patience_s: float) -> None:
        """Close the command's stdin, which ends the host agent; kill the command if it does not end."""
        if self.child.stdin is not None:
            self.child.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.ended()
        if self.child.returncode is None and self._known is not None:
            processes.send(self._known, signal.SIGKILL)  # asyncio's own `kill` may take the exit code from its thread
