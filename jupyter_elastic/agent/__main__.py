"""`python -m jupyter_elastic.agent [--endpoint E] [--take-over] [--idle S] [--foreground] [--log-format F]`.

This user's agent.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import logging.handlers
import signal
import sys
from collections.abc import Callable, Coroutine
from io import TextIOWrapper
from pathlib import Path

from jupyter_elastic.agent import agent
from jupyter_elastic.platform import logs, paths, private_files, systemd
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.types.errors import ElasticError

LOG_BYTES = 5_000_000


def main(arguments: list[str] | None = None) -> int:
    """Run the agent; 0 when it left because nobody needs it or because there is one already."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_elastic.agent", description=__doc__)
    parser.add_argument("--endpoint", help="the daemon: endpoint or connection file; default: the own pool")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="replace this user's agent elsewhere (another container, another host), of which nothing runs any more",
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=agent.IDLE_S,
        metavar="S",
        help="leave when nothing ran for so long and no notebook, server or command of this user is there (900)",
    )
    parser.add_argument("--foreground", action="store_true", help="log to the terminal too")
    parser.add_argument(
        "--log-format", choices=logs.FORMATS, help="lines for people (text), or JSON objects (as the pool's daemon)"
    )
    options = parser.parse_args(arguments)
    if not options.idle > 0:
        parser.error(f"--idle {options.idle}: expected a number of seconds")
    try:
        lock, clients = Lock(paths.agent_lock()), Lock(paths.clients_lock())
        taken = lock.acquire()
        systemd.notify("READY=1")  # this user has an agent, this process or another
        if not taken:
            logs.say("this user's agent runs already", options.log_format or "text")
            return 0
        log_as = _log(options.log_format, foreground=options.foreground)
        again = ["--idle", str(options.idle)]
        if options.log_format:
            again += ["--log-format", options.log_format]
        if options.endpoint:
            again += ["--endpoint", options.endpoint]
        work = agent.serve(
            options.endpoint,
            clients,
            take_over=options.take_over,
            idle_s=options.idle,
            arguments=tuple(again),
            log_as=log_as,
        )
        asyncio.run(_until_signal(work))
        paths.agent_file().unlink(missing_ok=True)  # it leaves on purpose: no driver starts another
        lock.release()  # before `clients`: processes that need an agent wait for `clients`, then check for an agent
    except ElasticError as problem:
        logs.say(str(problem), options.log_format or "text")
        return 1
    return 0


class _PrivateLog(logging.handlers.RotatingFileHandler):
    """A rotating log whose files only their owner can read."""

    def _open(self) -> TextIOWrapper:
        private_files.open_private(Path(self.baseFilename), append=True).close()
        return super()._open()


def _log(log_format: logs.Format | None, *, foreground: bool) -> Callable[[logs.Format], None]:
    """Set up the log; return a function to call with the pool's log format, for an agent without `log_format`."""
    path = paths.state_dir() / "agent.log"
    handlers: list[logging.Handler] = [_PrivateLog(path, maxBytes=LOG_BYTES, backupCount=1)]
    if foreground:
        handlers.append(logging.StreamHandler())
    if log_format is None:
        return logs.set_up_later(handlers)
    logs.set_up(log_format, handlers)
    return lambda _kind: None


async def _until_signal(agent_runs: Coroutine[None, None, None]) -> None:
    """Run the agent until SIGTERM or SIGINT, which end the agent and never its jobs."""
    work = asyncio.ensure_future(agent_runs)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    await asyncio.gather(work, return_exceptions=True)
    if not work.cancelled() and (problem := work.exception()) is not None:
        raise problem


if __name__ == "__main__":
    sys.exit(main())
