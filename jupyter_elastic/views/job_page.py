"""Makes a job's page for every front end: its screen, the ranks' last output, the first traceback.

Reads the job's folder as the user of this process: another user's job has a screen and no output.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from jupyter_elastic.client.job_screen import JobScreen
from jupyter_elastic.jobfiles import failure
from jupyter_elastic.views import static_display
from jupyter_elastic.views.followed_job import FollowedJob
from jupyter_elastic.views.output import Output, without


class JobPage(Struct, frozen=True, kw_only=True):
    """A page for front ends."""

    screen: JobScreen
    outputs: Output
    """By rank (as text) its last lines: `[stream, text]`, or a display, as `views/output.py` describes it."""
    traceback: str
    """That of the rank that failed first; empty without a failure."""
    failed_rank: int | None
    """The rank that failed first; None without a failure."""
    notice: str
    """Text above all others: the pool does not answer, or output was left out; else empty."""
    folder: str
    """Name of the job's folder: unique over all pools, unlike the job's number."""


class KeptPage(Struct, frozen=True, kw_only=True):
    """The content that a notebook's file keeps of a job: its page, and the forms for readers without our front end."""

    page: JobPage
    forms: dict[str, str]


def job_page(
    job: FollowedJob, notice: str, *, outputs: Output | None = None, failure_apart: bool = False, live: bool = True
) -> JobPage:
    """Return the page; `outputs`: last ones read, `failure_apart`: the cell shows the traceback, `live`: it counts."""
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
        notice=job.problem or notice or job.outputs.left_out,
        folder=job.files.path.name,
    )


def page_now(job: FollowedJob, notice: str, *, rank: int | None = None, live: bool = True) -> JobPage:
    """Return the page with the ranks' newest output; with a `rank`, that rank's lines alone."""
    job.read_files()
    return job_page(job, notice, outputs=job.outputs.snapshot(only=rank), live=live)


def kept_page(job: FollowedJob) -> KeptPage:
    """Return the page as a file keeps it."""
    page = msgspec.structs.replace(page_now(job, "", live=False), notice="")
    return KeptPage(page=page, forms=forms(job, page))


def forms(job: FollowedJob, page: JobPage) -> dict[str, str]:
    """Return the page for readers without our front end, by MIME type."""
    found = failure_of(job)
    error = f"rank {found.rank}\n{page.traceback}" if found is not None and page.traceback else ""
    return {
        "text/html": static_display.html(page.screen, page.outputs, error=error, folder=page.folder),
        "text/plain": static_display.text(page.screen, page.outputs, error=error),
    }


def failure_of(job: FollowedJob) -> failure.Failure | None:
    """Return the failure of a failed job's first failing rank."""
    return failure.read(job.files) if job.model.phase == "failed" else None


def without_clock(page: JobPage) -> JobPage:
    """Return the page with its clocks rounded to seconds, and none after the job's end: equal pages are sent once."""
    screen = page.screen
    now = round(screen.now) if screen.ended_at is None else 0
    eta = None if screen.eta_s is None else round(screen.eta_s)
    return msgspec.structs.replace(page, screen=msgspec.structs.replace(screen, now=now, eta_s=eta))
