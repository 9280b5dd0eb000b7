"""What the server sends of a job's folder, which it reads as its own user. Another user's folder is closed to it."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from jupyter_elastic.client.job import BACKGROUND
from jupyter_elastic.types.errors import NotFound
from jupyter_elastic.widgets.follower import FollowedJob
from jupyter_elastic.widgets.page import JobPage, forms, job_page


class KeptPage(Struct, frozen=True, kw_only=True):
    """What a notebook's file keeps of a job: its page, and the forms for readers without our front end."""

    page: JobPage
    forms: dict[str, str]
    """By MIME type."""


def page_now(job: FollowedJob, notice: str) -> JobPage:
    """The page, with what the ranks have printed by now."""
    job.read_files()
    return job_page(job, notice)


def kept_page(job: FollowedJob) -> KeptPage:
    """The page now, as a file keeps it."""
    page = page_now(job, "")
    page = msgspec.structs.replace(page, notice="")
    return KeptPage(page=page, forms=forms(job, page))


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
