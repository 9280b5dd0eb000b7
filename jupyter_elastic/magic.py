"""`%%distribute`, `%%policy` and `%elastic`: parse, package, call the client, show a view. No logic of their own.

Errors of ours are shown as their message alone: the traceback of this package would only stand in the way.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display as show

from jupyter_elastic import connection, keeper, packaging, wire
from jupyter_elastic.agent.spawn import warm_up
from jupyter_elastic.client import Client
from jupyter_elastic.errors import BadRequest, JobCancelled
from jupyter_elastic.job import Job, check_size, find
from jupyter_elastic.magic_options import Options, distribute_line, long_options, parse, policy_line
from jupyter_elastic.types import JobInfo, JobSpec

WAIT_TICK_S = 0.25
CANCEL_S = 60.0
"""How long an interrupted cell waits for its job to be gone."""
UNANSWERED = (
    "interrupted before the daemon had answered, so that nobody knows whether the job is queued: see %elastic jobs "
    "and %elastic cancel"
)


def load(shell: Any) -> None:
    """Register the magics, and begin to look for the pool so that the first cell need not wait for it."""
    shell.register_magics(ElasticMagics(shell))
    with contextlib.suppress(Exception):  # an interface of IPython's own; without it there is no completion
        shell.set_hook("complete_command", _complete, re_key=re.compile(r"%%distribute"))
        shell.set_hook("complete_command", _complete_elastic, re_key=re.compile(r"%?elastic"))
    shell.input_transformers_cleanup.append(_with_body)
    if "distributed" in shell.magics_manager.magics["cell"]:
        print("note: %%distributed is nbdistributed's, %%distribute is jupyter-elastic's", file=sys.stderr)  # noqa: T201
    threading.Thread(target=_warm, name="jupyter-elastic start", daemon=True).start()


def _with_body(lines: list[str]) -> list[str]:
    """A cell that only asks for help has a body too: IPython refuses an empty one before it asks the magic."""
    asks = bool(lines) and lines[0].startswith("%%distribute") and bool({"--help", "-h"} & set(lines[0].split()))
    return [lines[0].rstrip("\n") + "\n", "pass\n"] if asks else lines


def _complete(_shell: Any, event: Any) -> list[str]:
    """Options of `%%distribute`, and names of the notebook after --in."""
    if event.line.split()[-1:] == ["--in"] or event.line.split()[-2:-1] == ["--in"]:
        return sorted(name for name in _shell.user_ns if not name.startswith("_"))
    return long_options()


def _complete_elastic(_shell: Any, _event: Any) -> list[str]:
    return ["attach", "cancel", "explain", "hosts", "jobs", "logs", "policy", "pool", "resize", "status"]


def _warm() -> None:
    """What the first cell needs, while a person still writes it.

    Its views, daemon and agent, what foresees waits, and a parent for its workers that has imported the framework.
    """
    with contextlib.suppress(Exception):  # the first cell says what is wrong
        import_module("jupyter_elastic.widgets.show").prepare()
        choose_engine("process")
        keeper.ensure()
        for framework in _likely_frameworks():
            warm_up(sys.executable, packaging.environment(os.environ), (framework,))
        import_module("jupyter_elastic.forecasts").for_live_views()


def _likely_frameworks() -> list[str]:
    """What the cells will import: what the notebook has imported, else what is installed, torch before TensorFlow."""
    names = ("torch", "tensorflow")
    imported = [name for name in names if name in sys.modules]
    return imported or [name for name in names if find_spec(name) is not None][:1]


@magics_class
class ElasticMagics(Magics):
    """The magics of this package."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._client: Client | None = None
        self._slots_are = ""

    @cell_magic
    def distribute(self, line: str, cell: str) -> Any:  # noqa: D102 - its help is magic_options' own, below
        if {"--help", "-h"} & set(line.split()):
            print(distribute_line.__doc__)  # noqa: T201
            return None
        options = parse(line, os.environ)
        package = self._package(options, cell)
        engine = choose_engine(options.engine)
        _report(package, options, engine)
        if options.dry_run:
            return None
        return self._run(options, package, engine)

    distribute.__doc__ = distribute_line.__doc__

    @cell_magic
    def policy(self, line: str, cell: str) -> Any:
        """Try a policy of your own, or let it decide.

        %%policy NAME [--shadow | --activate] [--opt k=v]

        The cell defines `plan(view)`, which gives back {job.job: workers}. With --shadow (the default) it is asked
        beside the active one, here in this kernel, and what it would do differently is shown; nothing changes. With
        --activate its text decides from now on, in a limited process of the daemon; that needs the right to.
        """
        name, activate, options = policy_line(line)
        if activate:
            self.client().ask(wire.SwitchPolicy(name=name, options=options, source=cell, reason="from a notebook"))
            print(f"policy {name} decides from now on; `%elastic policy` lists all")  # noqa: T201
            return None
        from jupyter_elastic import forecasts, shadow

        found = shadow.compare(self.client().ask, name, cell, options)
        forecasts.for_live_views().begin(name, options, cell)  # `%elastic pool` of this notebook goes on asking it
        return found

    @line_magic
    def elastic(self, line: str) -> Any:
        """Ask the pool, or tell it something.

        %elastic status | pool (who holds what, who waits) | jobs [--all] | logs JOB [--rank N] | cancel JOB |
        explain JOB | attach JOB (its live view) | hosts | policy (the picker, with its what-if) |
        policy NAME [--opt k=v]
        """
        from jupyter_elastic import cli
        from jupyter_elastic.widgets.show import surface

        words = line.split()
        if words in ([], ["status"], ["pool"], ["policy"]) and surface(self.shell) == "widget":
            return self._show_pool(words)
        if words[:1] == ["attach"] and len(words) == 2 and not words[1].startswith("-"):
            return self._attach(words[1])
        cli.notebook(line, self.client)
        return None

    def _show_pool(self, words: list[str]) -> None:
        """The live pool, with the picker open after `policy`; its plain words where the page has no widgets."""
        from jupyter_elastic import cli, forecasts
        from jupyter_elastic.widgets import live_pool
        from jupyter_elastic.widgets.pool import PoolWidget

        plain = cli.text(words or ["status"], self.client)
        forecasts.for_live_views()
        show(
            PoolWidget(
                picking=words == ["policy"],
                plain=plain,
                foresee=lambda names, options: forecasts.forecast(live_pool.ask, names, options),
            )
        )

    def client(self) -> Client:
        """This kernel's connection; daemon and agent are started when there are none."""
        keeper.ensure()
        if self._client is None:
            self._client = Client()
        return self._client

    # --- inside -------------------------------------------------------------------------------------------------------

    def _package(self, options: Options, cell: str) -> packaging.Package:
        return packaging.package(
            cell,
            self.shell.user_ns,
            filename=f"<In[{_number(self.shell)}]>",
            first_line=2,
            only=options.only,
            out=options.out,
            env=options.env,
            seed=options.seed,
            labels={name: f"<In[{number}]>" for name, number in _cells(self.shell).items()},
        )

    def _run(self, options: Options, package: packaging.Package, engine: str) -> Any:
        from jupyter_elastic import forecasts
        from jupyter_elastic.widgets import bundle
        from jupyter_elastic.widgets.show import Shown, surface

        # Where a connection stands the daemon lives; for the agent the view looks should the job not begin.
        client = self._client if self._client is not None and self._client.connected else self.client()
        check_size(client, options.min_slots)
        if surface(self.shell) == "widget":
            bundle.check()
            forecasts.for_live_views()
        notebook, cell = _place(self.shell)
        spec = job_spec(options, package, engine, f"cell-{_number(self.shell)}", notebook=notebook, cell=cell)
        view = shown = None
        try:
            number = client.begin_submit(spec, uuid.uuid4().hex)
            view = Shown(self.shell, waits=not options.detach)  # takes the time in which the daemon writes the job down
            job = self._queued(client, spec, number())
        except BaseException as problem:
            if view is not None:
                view.discard()
            if isinstance(problem, BadRequest):
                packaging.remove_folder(Path(spec.folder))
            if isinstance(problem, KeyboardInterrupt):
                raise JobCancelled(UNANSWERED) from None
            raise
        if options.handle:
            self.shell.user_ns[options.handle] = job
        try:
            view.follow(job, self._kind(client))
            shown = view
            if options.detach:
                # Under its name the handle is not shown too: what it says now would stand there, out of date, for ever.
                return None if options.handle else job
            while not view.watched.ended.wait(WAIT_TICK_S):
                if view.sent_away:
                    view.let_go()
                    return job
                view.refresh()
        except KeyboardInterrupt:
            raise interrupted(job, shown) from None
        view.refresh(last=True)
        job.check()
        values, notes = returned(job.results, options.out)
        self.shell.user_ns.update(values)
        for note in notes:
            print(note)  # noqa: T201
        return None

    @staticmethod
    def _queued(client: Client, spec: JobSpec, number: int) -> Job:
        owner = client.welcome.user if client.welcome is not None else getpass.getuser()
        queued = JobInfo(job=number, owner=owner, spec=spec, phase="queued", submitted_at=time.time())
        return Job(client, number, queued)

    def _kind(self, client: Client) -> str:
        """What the pool's slots are, `gpu` or `cpu`: asked once, it does not change while a pool lives."""
        if not self._slots_are:
            answer = client.ask(wire.ListHosts())
            self._slots_are = answer.kind if isinstance(answer, wire.Hosts) else "cpu"
        return self._slots_are

    def _attach(self, word: str) -> Job:
        from jupyter_elastic.widgets.show import Shown

        client = self.client()
        job, said = find(client, word)
        if said:
            print(f"note: {said}")  # noqa: T201
        view = Shown(self.shell)
        view.follow(job, self._kind(client))
        view.replay()
        return job


def job_spec(
    options: Options, package: packaging.Package, engine: str, name: str, *, notebook: str = "", cell: str = ""
) -> JobSpec:
    """The job as it is to be queued, with this name if it was given none; its folder is written."""
    folder = packaging.create_folder(package, connection.jobs_dir())
    return JobSpec(
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
        view.refresh(last=True)
        unit = view.watched.model.unit
    freed = (
        f"its {held} {unit}s are free again" if held > 1 else f"its {unit} is free again" if held else "it held none"
    )
    return JobCancelled(f"interrupted: job {job.id} is cancelled; {freed}")


def choose_engine(asked: str) -> str:
    """The engine asked for, else Horovod where it is built for this interpreter, else independent workers.

    BadRequest names the engines that there are.
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
    return asked


@functools.cache
def _engines() -> dict[str, EntryPoint]:
    """The installed engines; reading the metadata of every installed package takes a while."""
    return {entry.name: entry for entry in entry_points(group="jupyter_elastic.engines")}


def _missing(engine: str) -> str:
    """Why the workers, which run this kernel's interpreter, can't have this engine; empty when they can."""
    return str(_engines()[engine].load().missing())


def _has_horovod() -> bool:
    return "horovod" in sys.modules or find_spec("horovod") is not None


def _report(package: packaging.Package, options: Options, engine: str) -> None:
    """Say what travels before it does."""
    for line in report(package, options, engine):
        print(line)  # noqa: T201


def report(package: packaging.Package, options: Options, engine: str) -> list[str]:
    """What travels, in a few lines."""
    lines = []
    sent = sorted((c for c in package.captured if c.kind != "import"), key=lambda c: -c.size)
    shown = [f"{c.name} ({c.type}, {packaging.human(c.size)})" for c in sent[:12]]
    more = f" and {len(sent) - 12} more" if len(sent) > 12 else ""
    if sent:
        lines.append(f"captured {packaging.human(package.size)}: {', '.join(shown)}{more}")
    modules = [c.name for c in package.captured if c.kind == "import"]
    if modules:
        lines.append(f"imported again in the workers: {', '.join(modules)}")
    lines += [f"note: {note}" for note in package.notes]
    stay = packaging.staying(package.payload, os.environ)
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
        kept = "" if options.preemptible else ", not to be paused"
        back = ", ".join(options.out) or "nothing"
        lines.append(f"dry run: engine {engine}, {wants} slot(s){kept}, back comes {back}; nothing was queued")
        if travel := packaging.telling(package.payload.env):
            lines.append(f"environment: {', '.join(travel)} travel, and what the system and the frameworks need")
        lines.append(f"workers run {sys.executable} in {package.payload.workdir}")
    return lines


def returned(results: Mapping[int, dict[str, Any]], names: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """The --out values, each of the lowest rank that has it, and notes on what not all have."""
    values, notes = {}, []
    for name in names:
        rank = next((rank for rank, given in results.items() if name in given), None)
        if rank is None:
            notes.append(f"note: --out {name}: no rank has set it")
            continue
        values[name] = results[rank][name]
        if rank != min(results):
            notes.append(f"note: --out {name}: rank {min(results)} has not set it; this is rank {rank}'s")
    return values, notes


def _cells(shell: Any) -> Mapping[str, int]:
    """File name that a cell of the notebook was compiled under -> its number, where IPython says it."""
    found: Mapping[str, int] = getattr(shell.compile, "_filename_map", {})
    return found


def _number(shell: Any) -> int:
    """The number in the brackets beside this cell."""
    return max(0, len(shell.user_ns.get("In", ())) - 1)


def _place(shell: Any) -> tuple[str, str]:
    """Notebook and cell id, where the front end says them."""
    metadata: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        metadata = shell.get_parent().get("metadata", {})
    return os.environ.get("JPY_SESSION_NAME", "")[:4096], str(metadata.get("cellId", ""))[:200]
