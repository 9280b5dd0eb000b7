"""A job's page: its screen, the ranks' last output, the first traceback. What every front end is sent of a job.

Reads the job's folder as the user of this process: of another user's job there is a screen and no output.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from jupyter_elastic.client.job_model import JobScreen
from jupyter_elastic.jobfiles import failure
from jupyter_elastic.widgets import display
from jupyter_elastic.widgets.follower import FollowedJob
from jupyter_elastic.widgets.output import Output, without


class JobPage(Struct, frozen=True, kw_only=True):
    """What a front end draws. `outputs` maps a rank (as text) to its last lines, each `[stream, text]`."""

    screen: JobScreen
    outputs: Output
    traceback: str
    failed_rank: int | None
    """The rank that failed first, where one did."""
    notice: str
    folder: str
    """Name of the job's folder: no two jobs of any pools share it, as they may share a number."""


class KeptPage(Struct, frozen=True, kw_only=True):
    """What a notebook's file keeps of a job: its page, and the forms for readers without our front end."""

    page: JobPage
    forms: dict[str, str]
    """By MIME type."""


def job_page(
    job: FollowedJob, notice: str, *, outputs: Output | None = None, failure_apart: bool = False, live: bool = True
) -> JobPage:
    """The page now. `outputs`: what was last read of them; `failure_apart`: the traceback is shown elsewhere.

    `live`: it is drawn anew as time goes on, so that it can count down.
    """
    found = failure_of(job)
    text = "" if found is None else found.text
    screen = job.screen()
    if live and (hold := job.model.hold(screen.now)):
        screen = msgspec.structs.replace(screen, detail="; ".join(filter(None, (screen.detail, hold))))
    return JobPage(
        screen=screen,
        outputs=without(outputs or job.outputs.snapshot(), text),
        traceback="" if failure_apart else text,
        failed_rank=None if found is None else found.rank,
        notice=job.problem or notice or job.outputs.refused,
        folder=job.files.path.name,
    )


def page_now(job: FollowedJob, notice: str, *, rank: int | None = None, live: bool = True) -> JobPage:
    """The page, with what the ranks have printed by now; where a `rank` is given, with that one's lines alone."""
    job.read_files()
    return job_page(job, notice, outputs=job.outputs.snapshot(only=rank), live=live)


def kept_page(job: FollowedJob) -> KeptPage:
    """The page now, as a file keeps it."""
    page = msgspec.structs.replace(page_now(job, "", live=False), notice="")
    return KeptPage(page=page, forms=forms(job, page))


def forms(job: FollowedJob, page: JobPage) -> dict[str, str]:
    """The page for readers without our front end, by MIME type."""
    found = failure_of(job)
    error = f"rank {found.rank}\n{page.traceback}" if found is not None and page.traceback else ""
    return {
        "text/html": display.html(page.screen, page.outputs, error=error, folder=page.folder),
        "text/plain": display.text(page.screen, page.outputs, error=error),
    }


def failure_of(job: FollowedJob) -> failure.Failure | None:
    """What the first failing rank of a failed job raised."""
    return failure.read(job.files) if job.model.phase == "failed" else None


def without_clock(page: JobPage) -> JobPage:
    """The page with what changes by itself left out, to the second: whether anything is worth sending."""
    screen = page.screen
    eta = None if screen.eta_s is None else round(screen.eta_s)
    return msgspec.structs.replace(page, screen=msgspec.structs.replace(screen, now=round(screen.now), eta_s=eta))
