"""Runs the slot agent: `python -m jupyter_elastic.slot_agent`, or `jupyter elastic admin slot-agent`.

Knows only its options.

Exit codes: 0 stopped, 1 failed, 2 wrong options, or nothing here that could be guarded.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.platform.systemd import notify
from jupyter_elastic.protocol.slot_agent_messages import SOCKET
from jupyter_elastic.slot_agent.cgroups import Cgroups
from jupyter_elastic.slot_agent.slot_agent import SlotAgent
from jupyter_elastic.types.errors import BadRequest, ElasticError


def main(arguments: Sequence[str] | None = None) -> int:
    """Guard the machine's GPUs until SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="jupyter elastic admin slot-agent", description="Keep each job to the GPUs that it has leased; as root."
    )
    parser.add_argument("--endpoint", default="", help="of the daemon; default: this machine's pool")
    parser.add_argument("--socket", type=Path, default=Path(SOCKET), help=f"for workers ({SOCKET})")
    parser.add_argument("--cgroup", type=int, choices=(1, 2), help="version of control groups; default: what is there")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        if os.geteuid() != 0:
            raise BadRequest("only root can move processes of others into control groups: run it as root")
        asyncio.run(_run(given))
    except* (ElasticError, OSError) as problems:
        problem: BaseException = problems
        while isinstance(problem, BaseExceptionGroup):
            problem = problem.exceptions[0]
        sys.stderr.write(f"the slot agent can't run: {problem}\n")
        sys.exit(2 if isinstance(problem, BadRequest) else 1)
    return 0


async def _run(given: argparse.Namespace) -> None:
    async with AsyncClient(given.endpoint or None) as client:
        agent = SlotAgent(client, Cgroups(given.cgroup))
        work = asyncio.ensure_future(agent.run(given.socket, lambda: notify("READY=1")))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        await asyncio.gather(work, return_exceptions=True)
        if not work.cancelled() and (problem := work.exception()) is not None:
            raise problem


if __name__ == "__main__":
    sys.exit(main())
