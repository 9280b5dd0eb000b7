"""A real pool for tests: a daemon and an agent as processes in a folder of their own, and what one asks of them.

    with Pool(tmp_path / "pool", slots=2) as pool:
        job = pool.submit("print('hello', rank)", slots=2, engine="process")
        assert pool.ended(job).outcome == "completed"
        assert pool.output(job, 0) == "hello 0\n"

All waiting is for events, which a thread collects; every wait has a limit and says what it saw instead. At the end
every process that was started in the pool is ended: it is known by the pool's folder in its environment.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from msgspec.structs import replace

from jupyter_elastic.client import Client
from jupyter_elastic.client.job import Job
from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder
from jupyter_elastic.jobfiles.payload import create_job_folder
from jupyter_elastic.kernel import capture
from jupyter_elastic.platform import endpoints, paths, private_files, processes
from jupyter_elastic.protocol.wire import CancelJob, ListJobs, Ping, ReadProblem
from jupyter_elastic.types import (
    ENDED,
    Event,
    JobEnded,
    JobInfo,
    JobRequeued,
    JobRunning,
    JobSpec,
)
from jupyter_elastic.types.errors import ElasticError, JournalError
from tests.support.invariants import no_slot_is_leased_twice

LIMIT_S = 60.0


class _Agent(psutil.Process):
    """An agent that a driver has started."""

    def poll(self) -> int | None:
        """None while it lives."""
        return None if processes.alive(self.pid, self.create_time()) else -signal.SIGKILL

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; whether whoever has adopted it cares (an init that reaps) does not matter."""
        limit = time.monotonic() + (timeout or LIMIT_S)
        while (code := self.poll()) is None:
            assert time.monotonic() < limit, f"the agent (process {self.pid}) does not end"
            time.sleep(0.01)
        return code


class Pool:
    """See the module."""

    def __init__(
        self, folder: Path, *, slots: int = 2, env: dict[str, str] | None = None, options: tuple[str, ...] = ()
    ) -> None:
        self.options = options
        """Of the daemon."""
        self.folder = private_files.private_dir(folder.absolute())
        self.runtime = paths.runtime_dir_of(self.folder)
        self.jobs_dir = private_files.private_dir(self.folder / "jobs")
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("JUPYTER_ELASTIC")},
            paths.DIR_VARIABLE: str(self.folder),
            "JUPYTER_ELASTIC_SLOTS": str(slots),
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        self.endpoint = f"ipc://{self.runtime / 'daemon.sock'}"
        self.owner: Pool = self
        """As whom the daemon runs: who may drain it, switch its policy, and all else that needs a right."""
        self.daemon: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | _Agent | None = None
        self.events: list[Event] = []
        self._news = threading.Condition()
        self._client: Client | None = None
        self._collector: threading.Thread | None = None
        self._stopping = False
        self._journal: Client | None = None

    def __enter__(self) -> Self:
        self.start_daemon()
        self.start_agent()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- processes ----------------------------------------------------------------------------------------------------

    def start_daemon(self) -> None:
        """Start the daemon and wait until it answers."""
        # The plainest policy at first, so that a test sees its own doings only; later the pool keeps what it has.
        first = () if self.daemon else ("--policy", "fifo")
        self.daemon = self._start("daemon", "jupyter_elastic.scheduler", *first, *self.options)
        self.until(lambda: self._daemon_lives() or self._ended_early(self.daemon, "daemon"), "the daemon comes up")
        self.client.ask(Ping(), timeout_s=LIMIT_S)
        self.collect()

    def collect(self) -> None:
        """Begin to collect events."""
        if self._collector is None:
            self._collector = threading.Thread(target=self._collect, daemon=True)
            self._collector.start()

    def start_agent(self, *options: str) -> None:
        """Start the agent, unless a driver has done so, and wait until it is there; it connects by itself."""
        self.agent = process = self._start("agent", "jupyter_elastic.agent", *options)

        def there() -> int:
            if process.poll():
                pytest.fail(f"the agent ended with {process.returncode}: {self.log('agent')}")
            record = private_files.read_json(self.runtime / "agent.json", endpoints.AgentRecord)
            return record.pid if record is not None and processes.alive(record.pid, record.start_time) else 0

        pid = self.until(there, "the agent comes up")
        if pid != process.pid:
            process.wait(LIMIT_S)
            self.agent = _Agent(pid)

    def kill_daemon(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill the daemon."""
        assert self.daemon is not None
        self.daemon.send_signal(how)
        self.daemon.wait(LIMIT_S)

    def kill_agent(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill the agent."""
        assert self.agent is not None
        self.agent.send_signal(how)
        self.agent.wait(LIMIT_S)

    @contextlib.contextmanager
    def closed_journal(self) -> Iterator[None]:
        """A time in which the daemon's files can't grow, as on a full disk; it begins when the daemon has noticed."""
        assert self.daemon is not None
        size = (self.folder / "journal.sqlite-wal").stat().st_size
        _, limit = before = resource.prlimit(self.daemon.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.daemon.pid, resource.RLIMIT_FSIZE, (size, limit))
        try:
            while not self.client.ask(ReadProblem()).text:
                with contextlib.suppress(JournalError):
                    self.cancel(self.submit("1"))
            yield
        finally:
            resource.prlimit(self.daemon.pid, resource.RLIMIT_FSIZE, before)
        self.until(lambda: not self.client.ask(ReadProblem()).text, "the journal is written again")

    def mend(self) -> None:
        """Start what was killed and end every job."""
        if self.daemon is None or self.daemon.poll() is not None:
            self.start_daemon()
        if self.agent is None or self.agent.poll() is not None:
            self.start_agent()
        for info in self.active():
            self.cancel(info.job)
        for info in self.active():
            self.ended(info.job)

    def stop(self) -> None:
        """End everything of this pool and remove its sockets."""
        self._stopping = True
        if self._journal is not None:
            self._journal.close()
        if self._client is not None:
            self._client.close()
        for process in (self.agent, self.daemon):
            if process is not None:
                process.kill()
                process.wait()
        while left := self.members():
            for process in left:
                processes.send(process, signal.SIGKILL)
            time.sleep(0.02)
        if self._collector is not None:
            self._collector.join(LIMIT_S)
        shutil.rmtree(self.runtime, ignore_errors=True)

    def members(self) -> list[processes.ProcessId]:
        """Every living process of this pool: daemon, agent, forkservers, drivers, workers."""
        mark = f"{paths.DIR_VARIABLE}={self.folder}".encode()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    found.append((process.pid, process.create_time()))
        return processes.living(found)

    def _start(self, name: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                env=self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _daemon_lives(self) -> bool:
        found = private_files.read_json(self.runtime / "daemon.json", endpoints.Endpoint)
        return found is not None and processes.alive(found.pid, found.start_time)

    def _ended_early(self, process: subprocess.Popen[bytes] | None, name: str) -> bool:
        assert process is not None
        if process.poll() is not None:
            pytest.fail(f"the {name} ended with {process.returncode}: {self.log(name)}")
        return False

    # --- asking -------------------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """A client of this pool's daemon."""
        if self._client is None:
            self._client = Client(self.endpoint)
        return self._client

    def submit(
        self,
        source: str,
        *,
        slots: int | tuple[int, int] = 1,
        engine: str = "process",
        names: dict[str, Any] | None = None,
        out: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        resumable: bool = False,
        **spec: Any,
    ) -> int:
        """Package a cell of a notebook with these `names` and queue it; the job's number. `spec` goes to JobSpec."""
        package = capture.package(source, names or {}, filename="<In[1]>", out=out, env=env)
        folder = create_job_folder(replace(package.payload, resumable=resumable), self.jobs_dir)
        low, high = (slots, slots) if isinstance(slots, int) else slots
        wanted = {"name": "test", "python": sys.executable, **spec}
        return self.client.submit(JobSpec(folder=str(folder), min_slots=low, max_slots=high, engine=engine, **wanted))

    def job(self, number: int) -> Job:
        """The handle of a job."""
        return Job(self.client, number)

    def info(self, job: int) -> JobInfo:
        """What the daemon says of the job now."""
        (found,) = self.client.jobs(all=True, job=job)
        return found

    def cancel(self, job: int) -> None:
        """Cancel a job."""
        self.client.ask(CancelJob(job=job, reason="by the test"))

    def job_folder(self, job: int) -> Path:
        """The job's folder."""
        return Path(self.info(job).spec.folder)

    def output(self, job: int, rank: int = 0, stream: str = "stdout") -> str:
        """What a rank has written so far."""
        path = self.job_folder(job) / f"rank.{rank}" / stream
        return path.read_text() if path.exists() else ""

    def attempt(self, job: int, number: int = 1) -> AttemptFolder:
        """The files of an attempt."""
        return AttemptFolder.of(self.job_folder(job), number)

    def pids(self, job: int, number: int = 1) -> list[processes.ProcessId]:
        """The processes of an attempt as last recorded, the driver first."""
        record = self.attempt(job, number).record()
        return [] if record is None else [record.driver, *record.workers]

    def log(self, name: str) -> str:
        """The end of the log of `daemon` or `agent`."""
        texts = [
            path.read_text() for path in (self.folder / f"{name}.out", self.folder / f"{name}.log") if path.exists()
        ]
        return "".join(texts)[-4000:]

    # --- waiting ------------------------------------------------------------------------------------------------------

    def events_of(self, job: int) -> list[Any]:
        """All events of a job so far."""
        with self._news:
            return [event.data for event in self.events if getattr(event.data, "job", None) == job]

    def wait(self, condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
        """Wait for events until the condition holds; its value. Fails with the events so far."""
        limit = time.monotonic() + limit_s
        while not (value := condition()):
            with self._news:
                self._news.wait(0.25)
            if time.monotonic() > limit:
                self._give_up(what, limit_s)
        return value

    def until(self, condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
        """Wait for something that no event tells (a file, a process); its value."""
        limit = time.monotonic() + limit_s
        while not (value := condition()):
            if time.monotonic() > limit:
                self._give_up(what, limit_s)
            time.sleep(0.01)
        return value

    def _give_up(self, what: str, limit_s: float) -> None:
        told = [f"{event.seq} {event.at:.3f} {event.data}"[:300] for event in self.events[-30:]]
        logs = [f"{name}: {self.log(name)}" for name in ("daemon", "agent")]
        with contextlib.suppress(ElasticError):
            told += [f"now {info.job} {info.phase} {info.reason}" for info in self.active()[:20]]
            told.append(f"the daemon is at {self.client.ask(ListJobs(limit=1)).seq}, seen {len(self.events)} events")
        pytest.fail("\n".join([f"not within {limit_s:g} s: {what}", *told, *logs]))

    def wait_fact(self, job: int, kind: type, count: int = 1, **fields: Any) -> Any:
        """Wait for the `count`th event of this kind with these fields; that event."""

        def found() -> Any:
            matching = [
                data
                for data in self.events_of(job)
                if isinstance(data, kind) and all(getattr(data, name) == value for name, value in fields.items())
            ]
            return matching[count - 1] if len(matching) >= count else None

        return self.wait(found, f"{kind.__name__} {fields} of job {job}")

    def running(self, job: int, **fields: Any) -> JobRunning:
        """Wait until the job runs (with `attempt=`, `generation=`)."""
        return self.wait_fact(job, JobRunning, **fields)

    def requeued(self, job: int, **fields: Any) -> JobRequeued:
        """Wait until the job is queued again."""
        return self.wait_fact(job, JobRequeued, **fields)

    def ended(self, job: int) -> JobEnded:
        """Wait until the job is over."""
        return self.wait_fact(job, JobEnded)

    def printed(self, job: int, text: str, rank: int = 0) -> None:
        """Wait until a rank has written this text."""
        folder = self.job_folder(job)
        path = folder / f"rank.{rank}" / "stdout"
        self.until(lambda: path.exists() and text in path.read_text(), f"rank {rank} of job {job} writes {text!r}")

    def all_gone(self, known: list[processes.ProcessId]) -> None:
        """Wait until none of these processes lives."""
        self.until(lambda: not processes.living(known), f"{known} are gone")

    def active(self) -> list[JobInfo]:
        """Jobs that are not over."""
        return [info for info in self.client.jobs() if info.phase not in ENDED]

    def no_slot_is_leased_twice(self) -> None:
        """Fold the leases of the whole story: a slot has one attempt at a time."""
        no_slot_is_leased_twice(self.events)

    def _collect(self) -> None:
        self._journal = Client(self.endpoint)
        with contextlib.suppress(ElasticError, concurrent.futures.CancelledError):
            for event in self._journal.events(0):
                with self._news:
                    self.events.append(event)
                    self._news.notify_all()
                if self._stopping:
                    return


@pytest.fixture
def pool(tmp_path: Path) -> Any:
    """A pool of two CPU slots with daemon and agent; import it into a conftest to use it."""
    with Pool(tmp_path / "pool", slots=2) as started:
        yield started
