"""Turns a package and its options into a job: engine, report, submit, and the end by an interrupt.

Used by a notebook's cell or a terminal. Knows the client and a job's folder; must not know IPython.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from rich.filesize import decimal as human

from jupyter_elastic.client import Client, services
from jupyter_elastic.client.job import Job
from jupyter_elastic.driver.engine import Engine, completed
from jupyter_elastic.engines.common.cell_text import facts, for_library, read_cell
from jupyter_elastic.hostfiles.hosts_file import host_name
from jupyter_elastic.jobfiles import sessions
from jupyter_elastic.jobfiles.cell_hints import CellText, Claim
from jupyter_elastic.jobfiles.names_used import in_text
from jupyter_elastic.jobfiles.payload import Payload, create_job_folder, remove_job_folder
from jupyter_elastic.jobfiles.sessions import SessionFolder
from jupyter_elastic.kernel import capture
from jupyter_elastic.kernel.cell_options import CellOptions
from jupyter_elastic.platform import entry_points, paths
from jupyter_elastic.types import JobInfo, JobRequest, JobSpec
from jupyter_elastic.types.errors import BadRequest, ElasticError, JobCancelled

MAX_ENTRIES, MAX_MODULES, MAX_TEXT = 10_000, 200, 500_000
"""Maximum entries of a folder, modules and characters of own modules that are read for the choice of an engine."""
CANCEL_S = 60.0
"""Seconds that an interrupted cell waits for its job's end."""
UNANSWERED = (
    "interrupted before the daemon had answered, so that nobody knows whether the job is queued: see %elastic job list "
    "and %elastic job cancel"
)


def submit(
    client: Client,
    options: CellOptions,
    package: capture.Package,
    choice: EngineChoice,
    name: str,
    *,
    notebook: str = "",
    cell: str = "",
) -> Job:
    """Write the job's folder and queue it; `name` is used if the options have none.

    BadRequest if this user's agent serves another pool. JobCancelled by an interrupt before the daemon has answered. A
    refused job leaves no folder.
    """
    services.check_agent()
    try:
        payload = replace(package.payload, resumable=options.resumable, cell=choice.cell)
        folder = create_job_folder(payload, paths.jobs_dir(), package.folder_copy)
        spec = JobSpec(
            name=options.name or name,
            folder=str(folder),
            python=sys.executable,
            engine=choice.engine,
            engine_reason=choice.why,
            notebook=notebook,
            cell=cell,
            session=options.session,
            host=host_name() if options.session or choice.this_host else "",
            one_host=choice.one_host,
            prefers=SessionFolder(options.session).slots() if options.session else (),
            **{asked: getattr(options, asked) for asked in JobRequest.__struct_fields__},
        )
        try:
            number = client.submit(spec)
        except BadRequest:
            remove_job_folder(folder)
            raise
    except KeyboardInterrupt:
        raise JobCancelled(UNANSWERED) from None
    owner = client.welcome.user if client.welcome is not None else ""
    queued = JobInfo(job=number, owner=owner, spec=spec, phase="queued", submitted_at=time.time())
    return Job(client, number, queued)


def interrupted(job: Job, view: Any = None, where: str = "in the notebook") -> JobCancelled:
    """Cancel the job after an interrupt and wait until it is gone; return the exception to raise."""
    held = len(job.info.slots)
    job.cancel(f"interrupted {where}")
    try:
        job.wait(CANCEL_S)
    except (TimeoutError, KeyboardInterrupt):
        if view is not None:
            view.let_go()
        return JobCancelled(f"job {job.id} was told to stop and has not ended yet; see %elastic job list")
    unit = "slot"
    if view is not None:
        view.ended.wait(CANCEL_S)
        view.refresh(last=True)
        unit = view.followed.model.unit
    freed = (
        f"its {held} {unit}s are free again" if held > 1 else f"its {unit} is free again" if held else "it held none"
    )
    lost = ""
    if job.info.spec.session and (folder := SessionFolder(job.info.spec.session)).ended() is not None:
        lost = f"; {sessions.gone(folder)}"
    return JobCancelled(f"interrupted: job {job.id} is cancelled; {freed}{lost}")


class EngineChoice(NamedTuple):
    """The engine that a cell gets."""

    engine: str
    why: str = ""
    """Reason of the choice; empty when the engine was requested."""
    one_host: bool = False
    """True if its workers find each other on one host only."""
    this_host: bool = False
    """True if they do so on this host only."""
    cell: CellText | None = None
    """Reading of the cell's text for the engine, with the modules that the cell imports from its own folders."""


def choose_engine(payload: Payload, options: CellOptions) -> EngineChoice:
    """Return the requested engine, else the one that claims the cell most; BadRequest when it lacks something here."""
    cells, found = claims(payload)
    choice = (
        EngineChoice(options.engine) if options.engine else _for_session(found) if options.session else _best(found)
    )
    for name, claim in found.items():
        if claim.only and name != choice.engine and options.max_slots > 1:
            asked = f"--engine {choice.engine}" if options.engine else f"{choice.why}, as for '{choice.engine}'"
            raise BadRequest(
                f"{asked}: the engine '{name}' alone runs this cell on several workers ({claim.why}); on another each "
                f"would train by itself, in silence. {'Leave `--engine` out' if options.engine else 'Make two cells'}, "
                "or take `--gpus 1`."
            )
    try:
        check_engine(choice.engine, resumable=options.resumable, servers=options.max_servers, session=options.session)
        if options.session and options.min_slots < options.max_slots:
            _check_forms_groups(choice.engine)
    except BadRequest as problem:
        raise BadRequest(f"{choice.why}: {problem}") if choice.why else problem from None
    cell, this_host = cells[choice.engine], not _engine(choice.engine).capabilities.spans_hosts
    return choice._replace(one_host=cell.one_host, this_host=this_host, cell=cell)


def default_engine(payload: Payload) -> EngineChoice:
    """Return the engine of a cell that names none, by the installed engines' claims."""
    return _best(claims(payload)[1])


def _best(found: dict[str, Claim]) -> EngineChoice:
    if not found:
        raise BadRequest("no engine can run this cell; `jupyter elastic doctor` says what is installed")
    best = max(found, key=lambda name: found[name].fit)
    return EngineChoice(best, found[best].why)


def _for_session(found: dict[str, Claim]) -> EngineChoice:
    """Return a session's engine: a later cell may train, so one that forms groups is preferred."""
    choice = _best(found)
    if _engine(choice.engine).capabilities.forms_groups:
        return choice
    for name in ("torch", "horovod"):
        other = _engine(name) if name in _engines() else None
        if other is not None and other.capabilities.sessions and not other.missing():
            return EngineChoice(name, "later cells of the session may train")
    return choice


def claims(payload: Payload) -> tuple[dict[str, CellText], dict[str, Claim]]:
    """Return a cell's hints for each installed engine that can be loaded, and the engines' claims on it, by name."""
    texts = local_modules(payload)
    uses = facts(payload).union(*map(in_text, texts))
    cell = read_cell(replace(payload, source="".join([payload.source, *texts]), uses=tuple(uses)))
    cells, found = {}, {}
    for name in sorted(_engines()):
        with contextlib.suppress(ElasticError):  # reported where the engine is named, and by doctor
            engine = _engine(name)
            cells[name] = for_library(cell, uses, engine.capabilities.library)
            if claim := engine.claim(cells[name]):
                found[name] = claim
    return cells, found


def local_modules(payload: Payload) -> list[str]:
    """Return the texts of the modules in the cell's own folders that it imports, directly or through others."""
    found: dict[str, list[str]] = {}
    for folder in map(Path, payload.sys_path):
        own = {"site-packages", "dist-packages"}.isdisjoint(folder.parts) and folder.suffix != ".egg"
        if own and not (folder.is_relative_to(sys.base_prefix) or folder.is_relative_to(sys.prefix)):
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                installed = _installed(folder, folder.stat().st_mtime_ns)
                for entry in itertools.islice(entries, MAX_ENTRIES):
                    if (name := entry.name.removesuffix(".py")) not in installed:
                        found.setdefault(name, []).append(entry.path)
    found.pop("jupyter_elastic", None)
    texts: list[str] = []
    left, todo = MAX_TEXT, sorted(_modules(facts(payload)))
    while todo and left > 0:
        for file in itertools.chain.from_iterable(map(_files, map(Path, found.pop(todo.pop(), ())))):
            texts.append(_text(file))
            left -= len(texts[-1])
            todo += sorted(_modules(in_text(texts[-1])) & found.keys())
            if left <= 0:
                break
    return texts


def _modules(uses: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in uses}


@functools.lru_cache(maxsize=64)
def _installed(folder: Path, changed: int) -> frozenset[str]:
    """Return the top-level modules that an installer has put into a folder, by its own records."""
    del changed
    lines = [line for name in ("RECORD", "top_level.txt") for file in folder.glob(f"*.dist-info/{name}")
             for line in _text(file).splitlines()]  # fmt: skip
    return frozenset(line.partition(",")[0].partition("/")[0].removesuffix(".py") for line in lines)


def _files(module: Path) -> Iterator[Path]:
    """Yield a module's file, or those of a package; none of another folder."""
    if module.suffix == ".py":
        yield module
    elif (module / "__init__.py").is_file():
        yield from itertools.islice(module.rglob("*.py"), MAX_MODULES)


def _text(path: Path) -> str:
    try:
        return "\n" + path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def check_engine(name: str, *, resumable: bool = False, servers: int = 0, session: str = "") -> None:
    """Raise BadRequest when there is no such engine, it lacks something here, or can't do what is requested."""
    if name not in _engines():
        _engines.cache_clear()  # perhaps just installed
        if name not in _engines():
            found = ", ".join(_for_cells()) or "none"
            raise BadRequest(f"--engine {name}: there is no such engine; installed are {found}")
    engine, can = _engine(name), _engine(name).capabilities
    if not can.takes_cells:
        raise BadRequest(f"--engine {name}: it runs no cells; name another, or leave --engine out. Nothing was queued.")
    if missing := engine.missing():  # the workers run this kernel's interpreter
        raise BadRequest(f"--engine {name}: {missing}. Nothing was queued.")
    if resumable and not can.resumable:
        raise BadRequest(
            f"--resumable: the engine {name} can't end its workers and start them anew; leave --resumable out, or "
            "name another with --engine. Nothing was queued."
        )
    if session and not can.sessions:
        raise BadRequest(
            f"--session: the engine {name} can't keep its workers between cells; leave --session out, or name another "
            "with --engine. Nothing was queued."
        )
    if servers and not can.takes_servers:
        raise BadRequest(
            f"--servers: the engine {name} has no parameter servers; leave --servers out, or take --engine "
            "tensorflow_ps. Nothing was queued."
        )
    if can.takes_servers and not servers:
        raise BadRequest(
            f"--engine {name}: it needs at least one parameter server; add --servers 1, which takes a slot. Nothing "
            "was queued."
        )


def _check_forms_groups(name: str) -> None:
    if not _engine(name).capabilities.forms_groups:
        raise BadRequest(
            f"--session and --gpus MIN:MAX: the engine {name} forms no groups, so nobody could come in; write "
            "--gpus N, or name another with --engine. Nothing was queued."
        )


def _for_cells() -> list[str]:
    found = []
    for name in sorted(_engines()):
        with contextlib.suppress(ElasticError):  # one that can't be imported
            if _engine(name).capabilities.takes_cells:
                found.append(name)
    return found


def _engine(name: str) -> type[Engine]:
    return completed(entry_points.load(_engines()[name]))


@functools.cache
def _engines() -> dict[str, list[EntryPoint]]:
    """Return the installed engines, cached: reading the metadata of every installed package takes a while."""
    return entry_points.installed(entry_points.ENGINES)


def report(package: capture.Package, options: CellOptions, choice: EngineChoice) -> list[str]:
    """Describe in a few lines what travels."""
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
    unsent = capture.variables_not_sent(package.payload, os.environ)
    if unsent:
        lines.append(
            f"note: variables that stay here: {', '.join(unsent)}; send one by --env {unsent[0]}, several by "
            "pattern, as in --env 'LAB_*'"
        )
    if options.deadline_at is not None:
        due = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(options.deadline_at))
        lines.append(f"to be done by {due}: the policy `deadline` sees to that, others do not look at it")
    if options.dry_run:
        kept = ("" if options.preemptible else ", not to be paused") + (", resumable" if options.resumable else "")
        kept += ", interactive" if options.interactive else ""
        back = ", ".join(options.out) or "nothing"
        engine = choice.engine + (f" ({choice.why})" if choice.why else "")
        low, high = options.min_servers, options.max_servers
        servers = f" and {low if low == high else f'{low} to {high}'} server(s)" if high else ""
        wants = f"{options.slot_numbers} slot(s){servers}{kept}"
        lines.append(f"dry run: engine {engine}, {wants}, back comes {back}; nothing was queued")
        if notable := capture.notable_variables(package.payload.env):
            lines.append(f"environment: {', '.join(notable)} travel, and what the system and the frameworks need")
        lines.append(f"workers run {sys.executable} in {package.payload.workdir}")
    return lines
