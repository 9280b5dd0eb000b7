"""REST of the functions to call. Knows this server's calls; must not know how a call is run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.protocol import wire
from jupyter_elastic.server_ext.function_calls import CallRequest, job_info
from jupyter_elastic.server_ext.handler_base import JsonHandler, answers, job_file, job_number
from jupyter_elastic.types import ENDED, JobInfo
from jupyter_elastic.types.errors import NotFound


class FunctionsHandler(JsonHandler):
    """Functions to call."""

    @answers("write")
    async def post(self) -> Any:
        """Queue a call; return `{job, call}` once it is on disk."""
        calls, request = self.settings["jupyter_elastic_functions"], self.body(CallRequest)
        job, call = await asyncio.to_thread(calls.submit, request)
        return {"job": job, "call": call}


class FunctionHandler(JsonHandler):
    """One call of a function."""

    @answers("read")
    async def get(self, job: str, call: str) -> Any:
        """Return a `CallState`."""
        calls, (folder, info) = self.settings["jupyter_elastic_functions"], await self.found(job)
        with job_file(f"the result of call {call[:9]}"):
            return await asyncio.to_thread(calls.state, folder, job_number(call), info)

    @answers("write")
    async def delete(self, job: str, call: str) -> Any:
        """Cancel the call; return `{cancelled}`."""
        calls, (folder, info) = self.settings["jupyter_elastic_functions"], await self.found(job)
        if info.phase in ENDED:
            return {"cancelled": False}
        with job_file("the job's folder"):
            return {"cancelled": await asyncio.to_thread(calls.cancel, folder, job_number(call), info.job)}

    async def found(self, job: str) -> tuple[Path, JobInfo]:
        """Return the job's folder, and the daemon's description of the job."""
        number = job_number(job)
        info = job_info(await self.follower.ask(wire.ListJobs(all=True, job=number)), number)
        if info.private:
            raise NotFound(f"job {number} is another user's")
        JobFolder.of(info).check_own("see or cancel its calls; the job as a whole can be cancelled")
        return Path(info.spec.folder), info
