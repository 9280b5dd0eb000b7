"""Starts the jobs of the engine `functions`, with their first calls, and asks whether they are over.

Knows the client and a job's folder; must not know threads, or who waits for which future.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from jupyter_elastic.client import services
from jupyter_elastic.client.blocking import Client
from jupyter_elastic.client.functions.futures import CallJob, Future, UnwrittenCall
from jupyter_elastic.client.job import Job
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.jobfiles import call_files as files
from jupyter_elastic.jobfiles.payload import Payload, create_job_folder, remove_job_folder
from jupyter_elastic.platform import paths, processes
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import ENDED, JobSpec
from jupyter_elastic.types.errors import DaemonUnreachable, ElasticError

ANSWER_S = 5.0
TRIES_S = 60.0
"""Seconds for which queueing a job is retried while the daemon is away."""


class JobStarter:
    """Starts jobs named `name` on at most `max_workers` slots; `endpoint` and `start` are those of `Functions`."""

    def __init__(self, name: str, max_workers: int | None, endpoint: str | None, *, start: bool) -> None:
        self.name = name
        self.max_workers = max_workers
        self._endpoint = endpoint
        self._start_services = start
        self._client: Client | None = None

    def slots(self) -> int:
        """Return the number of the pool's slots; any thread may ask."""
        self.ensure()
        with Client(self._endpoint) as client:
            return _slots(client)

    def start(self, calls: list[UnwrittenCall]) -> tuple[CallJob, dict[int, Future[Any]]]:
        """Queue a job with `calls` as its first calls."""
        setting = calls[0].setting
        payload = Payload(
            source=files.SOURCE,
            filename=f"<{self.name}>",
            first_line=1,
            names=pickle.dumps({}),
            env=setting.env,
            sys_path=setting.path,
            workdir=setting.workdir,
            authkey=setting.authkey,
            kernel=processes.this_process(),
        )
        folder = create_job_folder(payload, paths.jobs_dir())
        with contextlib.ExitStack() as undo:
            undo.callback(remove_job_folder, folder)
            if self.max_workers is not None:
                files.limit(folder, self.max_workers)
            run = CallJob(folder, setting)
            undo.callback(run.close)
            new = run.add(calls) or {}
            try:
                run.job = self._queue(folder, len(calls))
            except BaseException:
                for future in new.values():
                    future._run = None
                raise
            undo.pop_all()
        return run, new

    def _queue(self, folder: Path, calls: int) -> Job:
        key, until = uuid.uuid4().hex, time.monotonic() + TRIES_S
        while True:
            try:
                self.ensure()
                if not self._endpoint:
                    services.check_agent()
                self._client = self._client or Client(self._endpoint)
                slots = _slots(self._client)
                spec = JobSpec(
                    name=self.name,
                    folder=str(folder),
                    python=sys.executable,
                    engine="functions",
                    min_slots=1,
                    max_slots=max(1, min(calls, slots, self.max_workers or slots)),
                )
                return Job(self._client, self._client.submit(spec, key))
            except DaemonUnreachable:
                if time.monotonic() > until:
                    raise

    def ensure(self) -> None:
        """Start a missing daemon and agent of this user, unless the pool was given by its endpoint."""
        if not self._endpoint:
            services.ensure(start=self._start_services)

    def ask_end(self, run: CallJob) -> None:
        """Record whether the run's job is over, if the daemon answers."""
        if not run.ended and self._client is not None:
            with contextlib.suppress(ElasticError):
                answer = self._client.ask(wire.ListJobs(all=True, job=run.job.id), ANSWER_S)
                jobs = expect(answer, wire.Jobs).jobs
                run.ended = not jobs or jobs[0].phase in ENDED

    def close(self) -> None:
        """Close the connection to the daemon."""
        if self._client is not None:
            self._client.close()


def _slots(client: Client) -> int:
    return len(expect(client.ask(wire.ListHosts()), wire.Hosts).slots)
