"""REST of the jobs: their pages, outputs, scripts, and the changes of a job. Must not know policies and functions."""

from __future__ import annotations

import asyncio
import shlex
from typing import Annotated, Any

import msgspec
from jupyter_server.auth.decorator import authorized
from msgspec import UNSET, UnsetType
from tornado import web  # type: ignore[attr-defined]

from jupyter_elastic.client.job import BACKGROUND
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.jobfiles.payload import SOURCE
from jupyter_elastic.protocol import wire
from jupyter_elastic.server_ext.handler_base import JsonHandler, answers, job_file, job_number
from jupyter_elastic.types import JobChange, JobId, JobSpec
from jupyter_elastic.types.errors import BadRequest
from jupyter_elastic.types.texts import visible
from jupyter_elastic.views import earlier_runs
from jupyter_elastic.views.job_page import kept_page, page_now

TEXT = "text/plain; charset=utf-8"


class JobsHandler(JsonHandler):
    """Jobs as the daemon describes them."""

    @answers("read")
    async def get(self) -> Any:
        """Return a list of `JobInfo`; with `all=1` including ended ones."""
        everything, limit = self.number("all", 0, 1), self.number("limit", 1000, 10_000)
        answer = await self.follower.ask(wire.ListJobs(all=bool(everything), limit=limit))
        return expect(answer, wire.Jobs).jobs


YEAR_9999 = 253_402_300_799
"""The last second that every calendar knows."""
_Sizes = Annotated[tuple[Annotated[int, msgspec.Meta(ge=1, le=100_000)], ...], msgspec.Meta(max_length=1000)]


class _Change(JobChange, frozen=True, kw_only=True):
    sizes: _Sizes | UnsetType = UNSET
    deadline_at: Annotated[float, msgspec.Meta(ge=0, le=YEAR_9999)] | UnsetType | None = UNSET


class JobHandler(JsonHandler):
    """One job."""

    @answers("read")
    async def get(self, job: str) -> Any:
        """Return a `JobPage`: screen, the ranks' last output, traceback."""
        followed = await self.follower.job(job_number(job))
        return await asyncio.to_thread(page_now, followed, self.follower.notice)

    @answers("write")
    async def patch(self, job: str) -> None:
        """Change the job's range, or another of its demands; missing fields keep their value."""
        given = msgspec.structs.asdict(self.body(_Change))
        if all(value is UNSET for value in given.values()):
            raise BadRequest(f"give at least one of {', '.join(given)}")
        await self.follower.ask(wire.ResizeJob(job=job_number(job), **given))

    @answers("write")
    async def delete(self, job: str) -> None:
        """Cancel the job."""
        await self.follower.ask(wire.CancelJob(job=job_number(job), reason="cancelled from the browser"))


class BackgroundHandler(JsonHandler):
    """The request that the cell that waits for a job goes on."""

    @answers("write")
    async def post(self, job: str) -> None:
        """Write a file that the cell sees in the job's folder; nothing happens if no cell waits."""
        files = (await self.follower.job(job_number(job))).files
        with job_file("the job's folder"):
            await asyncio.to_thread(files.write, b"", BACKGROUND)


class ExplanationHandler(JsonHandler):
    """The reason why a job waits, or holds its slots."""

    @answers("read")
    async def get(self, job: str) -> Any:
        """Return `{text}`."""
        answer = await self.follower.ask(wire.ExplainJob(job=job_number(job)))
        return {"text": expect(answer, wire.Explanation).text}


class OutputHandler(JsonHandler):
    """The whole file of a rank's output."""

    @web.authenticated
    @authorized("read")
    async def get(self, job: str, rank: str, stream: str) -> None:
        """Send the file as text, in pieces so that a long one costs no memory; of another user's job 64 MiB at most."""
        files = (await self.follower.job(job_number(job))).files
        with job_file(f"{stream} of rank {rank[:9]}"):
            file = await asyncio.to_thread(files.open, f"rank.{job_number(rank)}", stream)
        with file:
            self.set_header("Content-Type", TEXT)
            self.set_header("X-Content-Type-Options", "nosniff")
            pieces = files.shown(file)
            while piece := await asyncio.to_thread(next, pieces, b""):
                self.write(piece)
                await self.flush()
        self.finish(set_content_type=TEXT)  # an empty file has sent no header yet, and the base class would say JSON


class KeptHandler(JsonHandler):
    """The content that a notebook's file keeps of a job."""

    @answers("read")
    async def get(self, job: str) -> Any:
        """Return a `KeptPage`: the page, and its forms for readers without our front end."""
        return await asyncio.to_thread(kept_page, await self.follower.job(job_number(job)))


class EarlierHandler(JsonHandler):
    """Earlier runs of a job."""

    @answers("read")
    async def get(self, job: str) -> Any:
        """Return a list of `Run`, newest first."""
        return await earlier_runs.runs(self.follower, job_number(job))


class MetricsHandler(JsonHandler):
    """The metrics of a job."""

    @answers("read")
    async def get(self, job: str) -> Any:
        """Return a list of `Series`."""
        return await earlier_runs.metrics(self.follower, job_number(job))


class ScriptHandler(JsonHandler):
    """The cell as it was submitted."""

    @answers("read")
    async def get(self, job: str) -> Any:
        """Return `{script, header}`; the header describes in comments the job and how to run it as a script."""
        followed = await self.follower.job(job_number(job))
        with job_file("the cell's source"):
            source = await asyncio.to_thread(followed.files.read, SOURCE)
        script = followed.files.text(source.decode(errors="replace"))
        return {"script": script, "header": _header(followed.number, followed.model.spec)}


def _header(job: JobId, spec: JobSpec | None) -> str:
    if spec is None:
        return ""
    slots = str(spec.max_slots) if spec.min_slots == spec.max_slots else f"{spec.min_slots}:{spec.max_slots}"
    name = visible(spec.name)
    command = shlex.join(["--gpus", slots, "--engine", spec.engine, "--name", name])
    return (
        f"# Job {job}, {name}. To run it as a script, which has nothing of the notebook:\n"
        f"# jupyter elastic run FILE.py {command}\n\n"
    )
