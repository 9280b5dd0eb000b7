"""Implements the commands about jobs: list, logs, cancel, release, resize, explain, attach."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from msgspec import UNSET
from rich.console import Console
from rich.markup import escape

from jupyter_elastic.cli.commands import Command, Connect, attention, print_json, table
from jupyter_elastic.cli.usage_command import jobs_since, print_rows
from jupyter_elastic.client import Client
from jupyter_elastic.client.job import Job, Tail, find
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import ENDED, JobInfo
from jupyter_elastic.types.errors import BadRequest, JobFailed
from jupyter_elastic.types.texts import visible

TAIL_S = 0.2
LISTED = 20
"""Maximum number of cancelled jobs that are named one by one."""
_JOB = "its number, or its name: the newest of that name"
_PHASE_STYLE = {
    "queued": "yellow", "starting": "cyan", "running": "cyan", "rescaling": "magenta", "stopping": "magenta",
    "completed": "green", "failed": "red", "cancelled": "dim",
}  # fmt: skip


def _jobs(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    if given.ended:
        print_rows(given, jobs_since(connect(), given.since or time.strftime("%Y-%m-%d")), console)
        return
    if given.since or given.csv:
        raise BadRequest("--since and --csv are about jobs that have ended: add --ended")
    client = connect()
    jobs = client.jobs(all=given.all, limit=max(1, given.limit))
    if given.json:
        print_json(jobs)
        return
    if problem := attention(client):
        console.print(escape(f"attention: {visible(problem)}"))
    if not jobs:
        console.print("no jobs" if given.all else "no unfinished jobs (--all lists the ended ones)")
        return
    rows = table("ID", "NAME", "OWNER", "STATE", "SLOTS", "ENGINE", "PROGRESS", "SUBMITTED", "NOTE")
    for info in jobs:
        rows.add_row(*_job_row(info))
    console.print(rows)


def _job_row(info: JobInfo) -> list[str]:
    spec, progress = info.spec, info.progress
    wants = str(spec.max_slots) if spec.min_slots == spec.max_slots else f"{spec.min_slots}:{spec.max_slots}"
    done = ""
    if progress is not None and progress.epoch is not None:
        done = f"epoch {progress.epoch:.3g}" + (f"/{progress.epochs:.3g}" if progress.epochs else "")
    elif progress is not None and progress.step is not None:
        done = f"step {progress.step}"
    return [
        str(info.job),
        escape(visible(spec.name)),
        escape(visible(info.owner)),
        f"[{_PHASE_STYLE[info.phase]}]{info.phase}[/]",
        f"{len(info.slots)}/{wants}",
        escape(visible(spec.engine)),
        done,
        time.strftime("%m-%d %H:%M:%S", time.localtime(info.submitted_at)),
        escape(visible(info.note, lines=True)),
    ]


def _job(client: Client, name: str) -> Job:
    """Return the job of this number or name; print a note when several have the name."""
    job, note = find(client, name)
    if note:
        print(f"note: {note}", file=sys.stderr)
    return job


def _attach(*_: Any) -> None:
    """Refuse `attach` outside the magic `%elastic job attach JOB`, which handles it itself."""
    raise BadRequest("write %elastic job attach JOB, in a cell of a notebook")


def _logs(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    del console
    job = _job(connect(), given.job)
    path = job.folder / f"rank.{given.rank}" / given.stream
    if given.json:
        print_json({"job": job.id, "rank": given.rank, "stream": given.stream, "path": str(path),
                     "text": job.logs(given.rank, given.stream)})  # fmt: skip
        return
    if not given.follow:
        sys.stdout.write(job.logs(given.rank, given.stream))
        return
    tail = Tail(job.files, path.parent.name, given.stream)
    while True:
        ended = job.status in ENDED
        tail.copy(sys.stdout)
        if ended:
            return
        time.sleep(TAIL_S)


def _cancel(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    client = connect()
    named = tuple(find(client, name, one=True)[0].id for name in given.job)
    asked = wire.CancelJobs(jobs=named, owner=given.user or "", reason=given.reason)
    jobs = expect(client.ask(asked), wire.Cancelled).jobs
    if given.json:
        print_json({"cancelled": jobs})
    elif len(jobs) > LISTED:
        console.print(f"cancelling: {len(jobs):,} jobs")
    else:
        console.print(f"cancelling: {', '.join(map(str, jobs)) or 'no job'}")


def _release(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    client = connect()
    job = find(client, given.job, one=True)[0]
    client.ask(wire.ReleaseJob(job=job.id, reason=given.reason, force=given.force))
    if given.json:
        print_json({"released": job.id})
    elif given.force:
        console.print(
            f"job {job.id} holds no slots any more; attention: something of it may still run on them, beside whoever "
            "gets them next. Look for processes of its owner there (ps, nvidia-smi), and end them"
        )
    else:
        console.print(f"job {job.id} holds no slots any more; it waits for its owner's agent")


def _resize(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    from jupyter_elastic.kernel.option_values import deadline_from, sizes_from  # lazily: it takes IPython

    if (given.slots, given.sizes, given.deadline, given.preemptible) == (None, None, None, None):
        raise BadRequest("say what to change: `job resize JOB 1:4`, --sizes, --deadline or --no-preempt")
    sizes: Any = UNSET if given.sizes is None else ()
    if given.sizes not in {None, "any"}:
        sizes = sizes_from(given.sizes)
    due: Any = UNSET if given.deadline is None else None
    if given.deadline not in {None, "none"}:
        due = deadline_from(given.deadline, time.time())
    client = connect()
    job = find(client, given.job, one=True)[0]
    preemptible = UNSET if given.preemptible is None else given.preemptible
    job.resize(given.slots, sizes=sizes, deadline_at=due, preemptible=preemptible)
    spec = job.info.spec
    if given.json:
        print_json(spec)
        return
    sentence = [f"job {job.id} may hold {spec.slot_numbers} slot{'' if spec.slot_numbers == '1' else 's'}"]
    if spec.deadline_at is not None:
        sentence.append(f"is to be done by {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(spec.deadline_at))}")
    if not spec.preemptible:
        sentence.append("is not to be paused")
    console.print(", ".join(sentence))


def _explain(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    job = _job(connect(), given.job)
    text = job.explain()
    if given.json:
        print_json({"job": job.id, "text": text})
        return
    console.print(escape(visible(text, lines=True)))
    if job.status == "failed":
        try:
            job.check()
        except JobFailed as problem:
            console.print(escape(visible(str(problem), lines=True)))


def _jobs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", "-a", action="store_true", help="the ended ones too")
    parser.add_argument("--limit", type=int, default=50, help="at most so many (default 50)")
    told = "slot-seconds of jobs that have ended: yours, for administrators everybody's; without --limit"
    parser.add_argument("--ended", action="store_true", help=told)
    parser.add_argument("--since", metavar="DATE", help="that have ended since a day (today), or a day with time")
    parser.add_argument("--csv", action="store_true", help="with --ended: print CSV")


def _job_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help=_JOB)


def _logs_arguments(parser: argparse.ArgumentParser) -> None:
    _job_argument(parser)
    parser.add_argument("--rank", "-r", type=int, default=0)
    parser.add_argument("--stream", choices=["stdout", "stderr"], default="stdout")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the job ends")


def _cancel_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("job", nargs="*", default=[], help=_JOB)
    which.add_argument("--user", help="all jobs of this user; others' is for administrators")
    parser.add_argument("--reason", default="")


def _release_arguments(parser: argparse.ArgumentParser) -> None:
    _job_argument(parser)
    parser.add_argument("--reason", default="", help="what the record says")
    parser.add_argument(
        "--force", action="store_true", help="though its agent is there, or its lease runs: something may still run"
    )


def _resize_arguments(parser: argparse.ArgumentParser) -> None:
    _job_argument(parser)
    parser.add_argument("slots", nargs="?", metavar="N | MIN:MAX")
    parser.add_argument("--sizes", metavar="N,N", help="only these numbers of slots; `any` for all of the range")
    parser.add_argument("--deadline", metavar="TIME", help="be done by then, as for a cell; `none` for no deadline")
    preempt = parser.add_mutually_exclusive_group()
    preempt.add_argument(
        "--no-preempt", dest="preemptible", action="store_false", default=None, help="it may not be paused"
    )
    preempt.add_argument("--preempt", dest="preemptible", action="store_true", default=None, help="it may be paused")


LIST = Command("list the jobs of the pool", _jobs, _jobs_arguments)
LOGS = Command("print what a rank of a job printed", _logs, _logs_arguments)
CANCEL = Command("end jobs", _cancel, _cancel_arguments)
RELEASE = Command(
    "free slots of a job whose agent is gone (administrators)", _release, _release_arguments, notebook=False
)
RESIZE = Command("change a job's number of slots, or its deadline", _resize, _resize_arguments)
EXPLAIN = Command("say why a job waits, or holds its slots", _explain, _job_argument)
ATTACH = Command("show the live view of a job in this notebook", _attach, _job_argument, terminal=False)
