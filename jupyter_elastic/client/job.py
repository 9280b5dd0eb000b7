"""Provides the handle of a job, as `%%distribute --detach` returns it, or `Job(client, number)`.

Knows the client and the job's folder; must not know the daemon's insides or how a screen draws. A result is unpickled
here, only from a folder of this user: a pickle runs code of its author.
"""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TextIO

from msgspec import UNSET, UnsetType

from jupyter_elastic.client.blocking import Client
from jupyter_elastic.client.job_model import JobModel
from jupyter_elastic.client.job_screen import SizePoint
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.jobfiles import failure, results, usage
from jupyter_elastic.jobfiles.job_folder import MAX_READ, JobFolder
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import ENDED, JobId, JobInfo, Phase, Progress
from jupyter_elastic.types.errors import (
    BadRequest,
    ElasticError,
    JobCancelled,
    JobFailed,
    NotFound,
    described,
)

BACKGROUND = "background"
"""File in a job's folder that lets the cell that waits for the job go on."""
MAX_SLOTS = 100_000
"""Maximum number of slots of any pool (`JobSpec`)."""
MANY = 10_000
"""Number of jobs that a pool remembers."""


class Tail:
    """A follower of a rank's output file."""

    def __init__(self, folder: JobFolder, *names: str) -> None:
        self._folder, self._names = folder, names
        self._copied = 0

    def copy(self, into: TextIO) -> None:
        """Copy the output since the last call."""
        with contextlib.suppress(FileNotFoundError), self._folder.open(*self._names) as file:
            file.seek(self._copied)
            for piece in self._folder.shown(file):
                into.buffer.write(piece)
            self._copied = file.tell()
            into.flush()


class Job:
    """A job of the pool. Its properties query the daemon each time; logs and results are read from its folder.

    Requests to the daemon raise DaemonUnreachable when none answers, and NotFound when there is no such job.

    Args:
        client: The connection to the daemon.
        number: The job's number.
        known: The job's state if it is known already, which saves a request.
    """

    def __init__(self, client: Client, number: JobId, known: JobInfo | None = None) -> None:
        self._client = client
        self.id = number
        self._known = known

    @property
    def info(self) -> JobInfo:
        """The job's state as the daemon reports it."""
        if self._known is None or self._known.phase not in ENDED:
            found = self._client.jobs(all=True, job=self.id)
            if not found:
                raise NotFound(f"there is no job {self.id}; `%elastic job list --all` lists them")
            self._known = found[0]
        return self._known

    @property
    def known(self) -> JobInfo:
        """The job's last known state; requested from the daemon only when there is none."""
        return self._known or self.info

    @property
    def name(self) -> str:
        """The name given with --name."""
        return self.known.spec.name

    @property
    def folder(self) -> Path:
        """The folder of `cell.py`, `rank.N/stdout`, `results/`; NotAllowed when it is another user's job."""
        if self.known.private:
            self.files.names()
        return self.files.path

    @property
    def files(self) -> JobFolder:
        """The job's folder, opened safely: files that another user has put there do no harm."""
        return JobFolder.of(self.known)

    @property
    def status(self) -> Phase:
        """`queued`, `starting`, `running`, `rescaling`, `stopping`, `completed`, `failed` or `cancelled`."""
        return self.info.phase

    @property
    def progress(self) -> Progress | None:
        """The last report of rank 0; None before that."""
        return self.info.progress

    @property
    def ranks(self) -> list[int]:
        """Ranks that have written output."""
        found = (re.fullmatch(r"rank\.([0-9]{1,9})", name) for name in self.files.names())
        return sorted(int(match[1]) for match in found if match)

    def logs(self, rank: int = 0, stream: str = "stdout") -> str:
        """Return a rank's output so far; `stream` is `stdout` or `stderr`.

        Args:
            rank: The rank, from 0.
            stream: `stdout` or `stderr`.

        Returns:
            The text; empty before the rank has written.

        Raises:
            BadRequest: There is no such stream.
            NotFound: The job has no such rank.
            NotAllowed: Another user owns the job, and its files are closed to this user. If they are readable, the
                last 4 MiB come back, with control characters written out.
        """
        if stream not in {"stdout", "stderr"}:
            raise BadRequest(f"there is no stream {stream!r}; ask for 'stdout' or 'stderr'")
        files = self.files
        try:
            data = files.read(f"rank.{rank}", stream)
        except FileNotFoundError:
            ranks = self.ranks
            if rank in ranks or not ranks:
                return ""
            raise NotFound(f"job {self.id} has no rank {rank}; there are {ranks}") from None
        cut = "" if files.own or len(data) < MAX_READ else "[what was printed before is only in the file]\n"
        return cut + files.text(data.decode(errors="replace"))

    def wait(self, timeout: float | None = None) -> Phase:
        """Wait for the job's end, at most `timeout` seconds (TimeoutError); return its final status."""
        if self.status not in ENDED:
            try:
                self._client.wait_for_end(self.id, timeout)
            except TimeoutError:
                problem = TimeoutError(f"job {self.id} has not ended after {timeout:g} s; it goes on")
                problem._render_traceback_ = lambda *_: [f"TimeoutError: {problem}"]  # type: ignore[attr-defined]
                raise problem from None
        return self.status

    @property
    def results(self) -> dict[int, Values]:
        """The `--out` values that came back, as rank -> {name: value}, of every rank that has finished.

        NotAllowed when it is another user's job.
        """
        files = results_of(self)
        found = (re.fullmatch(r"rank\.([0-9]{1,9})\.pickle", name) for name in files.names("results"))
        return dict(sorted((int(match[1]), _load(files, match[0])) for match in found if match))

    def result(self, rank: int | None = None) -> Any:
        """Return the value of the --out name (a dict if several), of `rank` or else of the lowest that finished.

        Waits for the job's end.

        Args:
            rank: The rank; None: the lowest rank that left a result.

        Returns:
            The value as it was pickled in the worker; None when the job has no --out names.

        Raises:
            JobFailed: The job failed; the message opens with the first failing rank's traceback.
            JobCancelled: The job was cancelled.
            NotAllowed: The job is another user's.
            NotFound: That rank left no result.
            ElasticError: The value did not come back, or can't be unpickled here. With several names this is a warning.
        """
        results_of(self)
        if self.status not in ENDED:
            self.wait()
        self.check()
        results = self.results
        if rank is None and not results:
            return None
        values = results.get(min(results) if rank is None else rank)
        if values is None:
            raise NotFound(f"rank {rank} of job {self.id} left no result; there are {sorted(results)}")
        if len(values) + len(values.lost) == 1:
            return values[next(iter([*values, *values.lost]))]
        for name, why in values.lost.items():
            warnings.warn(f"`{name}` did not come back: {why}; the other names did", stacklevel=2)
        return values

    @property
    def error(self) -> failure.Failure | None:
        """The exception of the first failing rank; None without one. NotAllowed if only the owner may read it."""
        self.files.names()
        return failure.read(self.files)

    def check(self) -> None:
        """Raise JobFailed or JobCancelled when the job has ended so."""
        info = self.info
        if info.phase == "failed" and info.private:
            raise JobFailed(f"job {self.id} failed; why is {info.owner}'s alone to know")
        if info.phase == "failed":
            raise JobFailed(self._failure(info))
        if info.phase == "cancelled":
            why = f": {info.reason}" if info.reason else ""
            raise JobCancelled(f"job {self.id} ({info.spec.name}) was cancelled{why}. Its slots are free again.")

    def cancel(self, reason: str = "") -> None:
        """End the job. Returns when the command is on the daemon's disk; `wait()` for the end.

        Args:
            reason: Shown as the reason of the job's end.

        Raises:
            NotAllowed: The job is another user's.
        """
        self._client.ask(wire.CancelJob(job=self.id, reason=reason))

    def resize(
        self,
        slots: int | str | tuple[int, int] | None = None,
        *,
        sizes: tuple[int, ...] | UnsetType = UNSET,
        preemptible: bool | UnsetType = UNSET,
        deadline_at: float | UnsetType | None = UNSET,
    ) -> None:
        """Change the job's range of slots: `2`, `"1:4"` or `(1, 4)`; or another of its demands.

        Arguments that are not given change nothing.

        Args:
            slots: A number, or the least and the most.
            sizes: Allowed numbers of slots; `()` for all of the range.
            preemptible: Whether a policy may take all its slots to pause it.
            deadline_at: Time to finish by, in seconds since the epoch; None for no deadline.

        Raises:
            BadRequest: The range is not one, no size lies in it, the pool is smaller, or the job is over.
            NotAllowed: The job is another user's.
        """
        low, high = (UNSET, UNSET) if slots is None else slot_range(slots)
        if low is not UNSET:
            check_size(self._client, low)
        self._client.ask(
            wire.ResizeJob(
                job=self.id,
                min_slots=low,
                max_slots=high,
                sizes=sizes,
                preemptible=preemptible,
                deadline_at=deadline_at,
            )
        )

    def explain(self) -> str:
        """Explain why the job waits, or holds its slots; and which ranks wait for which, if one has for long."""
        text = expect(self._client.ask(wire.ExplainJob(job=self.id)), wire.Explanation).text
        info = self.info
        use = usage.read(JobFolder.of(info)) if info.phase == "running" else None
        if use is not None and use.waits and use.fresh(time.time()):
            waits = self.files.text(use.waits)
            return f"{text}\n{waits[0].upper()}{waits[1:]}."
        return text

    def size_history(self) -> list[SizePoint]:
        """Return the job's numbers of slots over time, with reasons; also the deaths and replacements of workers."""
        model = JobModel(self.id)
        for event in self._client.events(0, self.id, follow=False):
            model.fold(event)
        return model.sizes

    def __repr__(self) -> str:
        try:
            info = self.info
        except ElasticError as problem:
            return f"<Job {self.id}: {problem}>"
        # Notebooks keep what they show: only an end stays true.
        ended = f": {info.phase}" if info.phase in ENDED else ""
        return f"<Job {self.id} {info.spec.name!r}{ended}>"

    def _failure(self, info: JobInfo) -> str:
        found = failure.read(self.files)
        files = f"The ranks' full output is in {info.spec.folder}/rank.*/"
        if found is None:
            return f"job {self.id} ({info.spec.name}) failed: {info.reason or 'no reason was given'}\n{files}"
        return f"{found.text}\n\nThat was rank {found.rank} of job {self.id} ({info.spec.name}). {files}"


def results_of(job: Job) -> JobFolder:
    """Return the folder to unpickle results from; NotAllowed when it is another user's job."""
    files, owner = job.files, job.known.owner
    files.check_own(
        f"read its results, which are pickles: to read one runs code that {owner} may have put into it. "
        f"For the values ask {owner} for a file of plain data (JSON, CSV, .npz)"
    )
    return files


def find(client: Client, word: str, *, one: bool = False) -> tuple[Job, str]:
    """Return the job of this number, else the newest of this name, and a note if several jobs have the name.

    Unfinished jobs go before ended ones, the user's own before others'. With `one` (for what can't be undone) a name of
    several unfinished jobs is a BadRequest; NotFound when no job has it.
    """
    if word.isdecimal():
        return Job(client, int(word)), ""
    jobs = client.jobs(all=True, limit=MANY)
    user = client.welcome.user if client.welcome is not None else ""
    named = [info for info in jobs if info.spec.name == word]
    if not named:
        close = get_close_matches(word, {info.spec.name for info in jobs}, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise NotFound(f"there is no job {word!r}; {hint}`%elastic job list --all` lists them with their numbers")
    named.sort(key=lambda info: (info.owner == user, info.phase not in ENDED, info.job))
    chosen = named[-1]
    unfinished = [info for info in named if info.phase not in ENDED and info.owner == chosen.owner]
    if one and len(unfinished) > 1:
        numbers = ", ".join(str(info.job) for info in unfinished)
        raise BadRequest(f"{len(unfinished)} unfinished jobs are called {word}: give the number, one of {numbers}")
    others = ", ".join(str(info.job) for info in named[-2::-1][:5])
    note = f"{len(named)} jobs are called {word}; this is job {chosen.job}, others: {others}" if others else ""
    return Job(client, chosen.job), note


def check_size(client: Client, least: int) -> None:
    """Raise BadRequest when no pool can have `least` slots; the pool itself judges smaller numbers."""
    if least <= MAX_SLOTS:
        return
    hosts = expect(client.ask(wire.ListHosts()), wire.Hosts)
    many = len(hosts.slots)
    unit = f"{'CPU ' if hosts.kind == 'cpu' else ''}slot{'' if many == 1 else 's'}"
    raise BadRequest(f"the pool has {many} {unit}; ask for at most {many} (you asked for {least})")


def slot_range(slots: int | str | tuple[int, int]) -> tuple[int, int]:
    """Parse `2` as (2, 2), `"1:4"` as (1, 4). BadRequest says what is wrong."""
    if isinstance(slots, tuple):
        slots = ":".join(str(part) for part in slots)
    match = re.fullmatch(r"\s*(\d{1,18})\s*(?::\s*(\d{1,18})\s*)?", str(slots))
    if match is None:
        raise BadRequest(f"--gpus {slots}: write a number (--gpus 2) or a range (--gpus 1:4)")
    low = int(match[1])
    high = int(match[2]) if match[2] is not None else low
    if low < 1:
        raise BadRequest(f"--gpus {slots}: a job needs at least 1 slot")
    if high < low:
        raise BadRequest(f"--gpus {slots}: the first number is the least and must not be above the second")
    return low, high if low > MAX_SLOTS else min(high, MAX_SLOTS)


class Values(dict[str, Any]):
    """A rank's values of `--out` by name; a name that did not come back raises ElasticError with the reason."""

    lost: dict[str, str]

    def __missing__(self, name: str) -> NoReturn:
        raise ElasticError(f"`{name}` did not come back: {self.lost[name]}") if name in self.lost else KeyError(name)


def _load(files: JobFolder, name: str) -> Values:
    """Read a rank's values, as far as they can be unpickled here."""
    from jupyter_elastic.client import pickling

    content = results.unpack(files.read("results", name))
    values = Values()
    values.lost = dict(content.lost)
    for names, data in content.pickles:
        try:
            values.update(pickling.loads(data))
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
            why = f"{described(problem)}; is a module missing in the kernel?"
            if not names:
                raise ElasticError(f"the result {files.path / 'results' / name} can't be read here: {why}") from problem
            values.lost |= dict.fromkeys(names, f"it can't be read here: {why}")
    return values
