"""A package and its options become a job: the engine, the report before, what is queued, and the end by an interrupt.

For whoever submits, a notebook's cell or a terminal. Knows the client and a job's folder; must not know IPython.
"""

from __future__ import annotations

import functools
import getpass
import os
import sys
import time
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from typing import Any

from msgspec.structs import replace
from rich.filesize import decimal as human

from jupyter_elastic.client import Client
from jupyter_elastic.client.job import Job
from jupyter_elastic.jobfiles.payload import create_job_folder, remove_job_folder
from jupyter_elastic.kernel import capture
from jupyter_elastic.kernel.options import Options
from jupyter_elastic.platform import paths, plugins
from jupyter_elastic.types import JobInfo, JobSpec
from jupyter_elastic.types.errors import BadRequest, JobCancelled

CANCEL_S = 60.0
"""How long an interrupted cell waits for its job to be gone."""
UNANSWERED = (
    "interrupted before the daemon had answered, so that nobody knows whether the job is queued: see %elastic jobs "
    "and %elastic cancel"
)


def submit(
    client: Client,
    options: Options,
    package: capture.Package,
    engine: str,
    name: str,
    *,
    notebook: str = "",
    cell: str = "",
) -> Job:
    """Write the job's folder and queue it, with this name if it was given none.

    JobCancelled by an interrupt before the daemon has answered; a job that is refused leaves no folder.
    """
    try:
        payload = replace(package.payload, resumable=options.resumable)
        folder = create_job_folder(payload, paths.jobs_dir())
        spec = JobSpec(
            name=options.name or name,
            folder=str(folder),
            python=sys.executable,
            min_slots=options.min_slots,
            max_slots=options.max_slots,
            engine=engine,
            priority=options.priority,
            sizes=options.sizes,
            preemptible=options.preemptible,
            deadline_at=options.deadline_at,
            max_time_s=options.max_time_s,
            estimate_s=options.estimate_s,
            notebook=notebook,
            cell=cell,
        )
        try:
            number = client.submit(spec)
        except BadRequest:
            remove_job_folder(folder)
            raise
    except KeyboardInterrupt:
        raise JobCancelled(UNANSWERED) from None
    owner = client.welcome.user if client.welcome is not None else getpass.getuser()
    queued = JobInfo(job=number, owner=owner, spec=spec, phase="queued", submitted_at=time.time())
    return Job(client, number, queued)


def interrupted(job: Job, view: Any = None, where: str = "in the notebook") -> JobCancelled:
    """An interrupt cancels the job that is waited for, waits until it is gone, and says so."""
    held = len(job.info.slots)
    job.cancel(f"interrupted {where}")
    try:
        job.wait(CANCEL_S)
    except (TimeoutError, KeyboardInterrupt):
        if view is not None:
            view.let_go()
        return JobCancelled(f"job {job.id} was told to stop and has not ended yet; see %elastic jobs")
    unit = "slot"
    if view is not None:
        view.ended.wait(CANCEL_S)
        view.refresh(last=True)
        unit = view.followed.model.unit
    freed = (
        f"its {held} {unit}s are free again" if held > 1 else f"its {unit} is free again" if held else "it held none"
    )
    return JobCancelled(f"interrupted: job {job.id} is cancelled; {freed}")


def choose_engine(asked: str, *, resumable: bool = False) -> str:
    """The engine asked for, else Horovod where it is built for this interpreter, else independent workers.

    BadRequest names the engines that there are, or says what the one asked for can't do.
    """
    if not asked:
        return "horovod" if _has_horovod() else "process"
    if asked not in _engines():
        _engines.cache_clear()  # installed a moment ago?
        if asked not in _engines():
            raise BadRequest(
                f"--engine {asked}: there is no such engine; installed are {', '.join(sorted(_engines())) or 'none'}"
            )
    if missing := _missing(asked):
        raise BadRequest(f"--engine {asked}: {missing}. Nothing was queued.")
    if resumable and not getattr(plugins.load(_engines()[asked]), "resumable", False):
        raise BadRequest(
            f"--resumable: the engine {asked} can't end its workers and start them anew; leave --resumable out, or "
            "name another with --engine. Nothing was queued."
        )
    return asked


@functools.cache
def _engines() -> dict[str, list[EntryPoint]]:
    """The installed engines; reading the metadata of every installed package takes a while."""
    return plugins.installed(plugins.ENGINES)


def _missing(engine: str) -> str:
    """Why the workers, which run this kernel's interpreter, can't have this engine; empty when they can."""
    return str(plugins.load(_engines()[engine]).missing())


def _has_horovod() -> bool:
    return "horovod" in sys.modules or find_spec("horovod") is not None


def report(package: capture.Package, options: Options, engine: str) -> list[str]:
    """What travels, in a few lines."""
    lines = []
    sent = sorted((c for c in package.captured if c.kind != "import"), key=lambda c: -c.size)
    shown = [f"{c.name} ({c.type}, {human(c.size)})" for c in sent[:12]]
    more = f" and {len(sent) - 12} more" if len(sent) > 12 else ""
    if sent:
        lines.append(f"captured {human(package.size)}: {', '.join(shown)}{more}")
    modules = [c.name for c in package.captured if c.kind == "import"]
    if modules:
        lines.append(f"imported again in the workers: {', '.join(modules)}")
    lines += [f"note: {note}" for note in package.notes]
    stay = capture.staying(package.payload, os.environ)
    if stay:
        lines.append(
            f"note: variables that stay here: {', '.join(stay)}; send one by --env {stay[0]}, several by "
            "pattern, as in --env 'LAB_*'"
        )
    if options.deadline_at is not None:
        due = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(options.deadline_at))
        lines.append(f"to be done by {due}: the policy `deadline` sees to that, others do not look at it")
    if options.dry_run:
        wants = f"{options.min_slots}" + ("" if options.max_slots == options.min_slots else f" to {options.max_slots}")
        wants = " or ".join(map(str, options.sizes)) or wants
        kept = ("" if options.preemptible else ", not to be paused") + (", resumable" if options.resumable else "")
        back = ", ".join(options.out) or "nothing"
        lines.append(f"dry run: engine {engine}, {wants} slot(s){kept}, back comes {back}; nothing was queued")
        if travel := capture.telling(package.payload.env):
            lines.append(f"environment: {', '.join(travel)} travel, and what the system and the frameworks need")
        lines.append(f"workers run {sys.executable} in {package.payload.workdir}")
    return lines
