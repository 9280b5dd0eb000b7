"""A job's page: its screen, the ranks' last output, the first traceback. Reads the job's folder as the server's user.

Another user's folder is closed to the server by the file system; its page then has a screen and no output.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from msgspec import Struct

from jupyter_elastic.client.job import BACKGROUND
from jupyter_elastic.client.job_model import JobScreen
from jupyter_elastic.errors import NotFound
from jupyter_elastic.jobfiles import failure, usage
from jupyter_elastic.server_ext.feed import JobFeed
from jupyter_elastic.widgets import display
from jupyter_elastic.widgets.output import without


class JobPage(Struct, frozen=True, kw_only=True):
    """What the renderer draws. `outputs` maps a rank (as text) to its last lines, each `[stream, text]`."""

    screen: JobScreen
    outputs: dict[str, list[list[str]]]
    traceback: str
    notice: str
    folder: str
    """Name of the job's folder: no two jobs of any pools share it, as they may share a number."""


def job_page(feed: JobFeed, down_since: float | None) -> JobPage:
    """The page now."""
    feed.outputs.poll()
    feed.model.use = usage.read(feed.folder)
    notice = ""
    if down_since is not None:
        since = time.strftime("%H:%M:%S", time.localtime(down_since))
        notice = f"The pool has not answered since {since}. The job goes on; this view comes back by itself."
    told = _traceback(feed.folder) if feed.model.phase == "failed" else ""
    return JobPage(
        screen=feed.model.screen(time.time()),
        outputs=without(feed.outputs.snapshot(), told),
        traceback=told,
        notice=notice,
        folder=feed.folder.name,
    )


class KeptPage(Struct, frozen=True, kw_only=True):
    """What a notebook's file keeps of a job: its page, and the forms for readers without our front end."""

    page: JobPage
    forms: dict[str, str]
    """By MIME type."""


def kept_page(feed: JobFeed, down_since: float | None) -> KeptPage:
    """The page now, as a file keeps it."""
    page = msgspec.structs.replace(job_page(feed, down_since), notice="")
    found = failure.read(feed.folder)
    rank = found.rank if found is not None else 0
    return KeptPage(page=page, forms=display.bundle(page.screen, page.outputs, error=page.traceback, rank=rank))


def without_clock(page: JobPage) -> JobPage:
    """The page with what changes by itself left out, to the second: whether anything is worth sending."""
    screen = page.screen
    eta = None if screen.eta_s is None else round(screen.eta_s)
    return msgspec.structs.replace(page, screen=msgspec.structs.replace(screen, now=round(screen.now), eta_s=eta))


def _traceback(folder: Path) -> str:
    found = failure.read(folder)
    return "" if found is None else found.text


def output_file(folder: Path, rank: int, stream: str) -> Path:
    """The file of what a rank printed; NotFound when there is none that this server may read."""
    path = folder / f"rank.{rank}" / stream
    try:
        with path.open("rb"):
            return path
    except OSError:
        raise NotFound(f"there is no {stream} of rank {rank} that you may read") from None


def send_to_background(folder: Path) -> None:
    """Tell the cell that waits for the job to go on; NotFound where this server may not write."""
    try:
        (folder / BACKGROUND).touch()
    except OSError:
        raise NotFound("the job's folder is not there, or is another user's") from None


def script(folder: Path) -> str:
    """The cell as it was submitted; NotFound when this server may not read it."""
    try:
        return (folder / "cell.py").read_text(encoding="utf-8")
    except OSError:
        raise NotFound("the cell's source is not there, or is another user's") from None
