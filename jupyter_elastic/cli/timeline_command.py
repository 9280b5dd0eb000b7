"""Implements `jupyter elastic pool timeline`: when jobs will most likely start and end; pages draw the picture."""

from __future__ import annotations

import argparse
import asyncio
import time
from concurrent.futures import TimeoutError as NoAnswer

from rich.console import Console
from rich.text import Text

from jupyter_elastic.cli.commands import Command, Connect, print_json
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable
from jupyter_elastic.types.texts import visible
from jupyter_elastic.views.timeline_screen import LEAST_S, MONTH_S, TimelineLook, TimelineScreen, job_lines
from jupyter_elastic.views.updater import updater

FIRST_S = 20.0
"""Maximum seconds to wait for the pool's answers."""
PREDICTED_S = 5.0
"""Maximum seconds to wait for a prediction."""
ELSEWHERE = (
    "The picture is in JupyterLab (View menu: Show the Elastic Timeline) and in a notebook (%elastic pool timeline); "
    "for programs: jupyter elastic pool timeline --json"
)
"""Tells the user of a terminal where the timeline is drawn."""


def read(look: TimelineLook) -> TimelineScreen:
    """Read the timeline with its past and, if that comes soon, its future. DaemonUnreachable without a pool."""

    async def ready() -> TimelineScreen:
        follower = updater().follower
        follower.follow_pool()
        until = time.monotonic() + PREDICTED_S
        while True:
            screen = follower.timeline_screen(look)
            known = follower.pool.hosts_known and screen.loaded
            if known and (screen.predicted_at or screen.note or not look.ahead_s or time.monotonic() > until):
                return screen
            await asyncio.sleep(0.05)

    asked = updater().begin(ready())
    try:
        return asked.result(FIRST_S)
    except NoAnswer:
        asked.cancel()
        raise DaemonUnreachable("the pool did not answer in time; `jupyter elastic doctor` says why") from None


def text(screen: TimelineScreen) -> str:
    """Return the likely starts and ends of all unfinished jobs as plain text."""
    return "\n".join([*job_lines(screen), *filter(None, [visible(screen.note)])]) or "no job runs or waits"


def look_of(given: argparse.Namespace) -> TimelineLook:
    """Return the view that the arguments select; BadRequest for impossible times."""
    past, ahead = given.past * 60.0, given.ahead * 60.0
    if not LEAST_S <= past <= MONTH_S or not 0 <= ahead <= MONTH_S:
        raise BadRequest("--past and --ahead are minutes, up to 43200 (30 days); --past is at least 0.2")
    return TimelineLook(past_s=past, ahead_s=ahead)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments, for terminal and notebook."""
    parser.add_argument("--past", type=float, default=10.0, metavar="MINUTES", help="so much of the past (10)")
    parser.add_argument("--ahead", type=float, default=5.0, metavar="MINUTES", help="so much of the future (5)")


def _timeline(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    look = look_of(given)
    connect()
    screen = read(look)
    if given.json:
        print_json(screen)
    else:
        console.print(Text(text(screen)))
        console.print(Text(ELSEWHERE, style="dim"))


TIMELINE = Command("show who held which slots, and will most likely hold them", _timeline, arguments)
