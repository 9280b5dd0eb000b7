"""`jupyter elastic ...` in a terminal, and `%elastic ...` in a notebook: the same words, the same tables.

Parses, asks the client, prints. Knows argparse, rich and the client; decides nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import queue
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn, cast

import msgspec
from msgspec import UNSET
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from jupyter_elastic._version import __version__
from jupyter_elastic.cli import describe
from jupyter_elastic.client import Client, services
from jupyter_elastic.client.job import Job, Tail, find
from jupyter_elastic.client.job_model import human_time
from jupyter_elastic.errors import BadRequest, DaemonUnreachable, ElasticError, JobFailed
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import ENDED, JobInfo
from jupyter_elastic.widgets import terminal
from jupyter_elastic.widgets.live_pool import live_pool
from jupyter_elastic.widgets.pool_model import PoolModel
from jupyter_elastic.widgets.pool_screen import PoolScreen

Connect = Callable[[], Client]
TAIL_S = 0.2
_JOB = "its number, or its name: the newest of that name"
FIRST_S = 20.0
"""How long the first picture of the pool is waited for."""
_PHASE_STYLE = {
    "queued": "yellow", "starting": "cyan", "running": "cyan", "rescaling": "magenta", "stopping": "magenta",
    "completed": "green", "failed": "red", "cancelled": "dim",
}  # fmt: skip
_PROGRAMS = {
    "run": ("jupyter_elastic.cli.run", "run a script on slots of the pool, and show what it prints"),
    "doctor": ("jupyter_elastic.cli.doctor", "check this installation and say what to do"),
    "build-horovod": ("jupyter_elastic.engines.horovod.build", "build Horovod for the installed torch and TensorFlow"),
    "stop": ("jupyter_elastic.cli.stop", "end this user's processes of the pool: daemon, agent, warm parents"),
    "sim": ("jupyter_elastic.scheduler.sim.cli", "try policies in the simulator"),
}
"""Commands with options of their own: name -> module with `main(argv)`."""
_PROCESSES = {
    "daemon": ("jupyter_elastic.scheduler", "run the pool's daemon in the foreground"),
    "agent": ("jupyter_elastic.agent", "run this user's agent in the foreground"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The terminal's entry point; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in _PROCESSES:
        _become(_PROCESSES[words[0]][0], words[1:])
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    client: list[Client] = []

    def connect() -> Client:
        services.ensure()
        client.append(Client())
        return client[0]

    try:
        if words and words[0] in _PROGRAMS:
            return int(import_module(_PROGRAMS[words[0]][0]).main(words[1:]) or 0)
        given = _parser("jupyter elastic", notebook=False).parse_args(words)
        return int(given.do(given, connect, console) or 0)
    except ElasticError as problem:
        errors.print(f"[red]error:[/red] {escape(str(problem))}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        for one in client:
            one.close()


def notebook(line: str, connect: Connect) -> None:
    """`%elastic line`; BadRequest for what can't be understood."""
    try:
        words = shlex.split(line)
        given = _parser("%elastic", notebook=True).parse_args(words or ["status"])
    except ValueError as problem:
        raise BadRequest(f"%elastic: {problem}") from None
    except SystemExit:  # --help was printed
        return
    given.do(given, connect, Console(highlight=False))


def text(words: list[str], connect: Connect) -> str:
    """What `%elastic words` would print, without colours."""
    console = Console(highlight=False, file=io.StringIO(), width=100, force_jupyter=False)
    given = _parser("%elastic", notebook=True).parse_args(words)
    given.do(given, connect, console)
    return cast("io.StringIO", console.file).getvalue().rstrip()


class _Parser(argparse.ArgumentParser):
    """Raises in a notebook, where exiting would be wrong."""

    in_notebook = False

    def error(self, message: str) -> NoReturn:
        if match := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            close = get_close_matches(match[1], re.findall(r"[\w-]+", match[2]), 1)
            message += f"; did you mean {close[0]}?" if close else ""
        if not self.in_notebook:
            super().error(message)
        raise BadRequest(f"{self.prog}: {message}")


def _parser(prog: str, *, notebook: bool) -> argparse.ArgumentParser:
    _Parser.in_notebook = notebook
    parser = _Parser(prog=prog, description="A shared, elastic GPU pool inside Jupyter.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, do: Callable[..., Any], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(do=do)
        return sub

    jobs = command("jobs", _jobs, "list the jobs of the pool")
    jobs.add_argument("--all", "-a", action="store_true", help="the ended ones too")
    jobs.add_argument("--limit", type=int, default=50, help="at most so many (default 50)")
    logs = command("logs", _logs, "what a rank of a job printed")
    logs.add_argument("job", help=_JOB)
    logs.add_argument("--rank", "-r", type=int, default=0)
    logs.add_argument("--stream", choices=["stdout", "stderr"], default="stdout")
    logs.add_argument("--follow", "-f", action="store_true", help="go on until the job ends")
    cancel = command("cancel", _cancel, "end jobs")
    cancel.add_argument("job", nargs="+", help=_JOB)
    cancel.add_argument("--reason", default="")
    resize = command("resize", _resize, "change how many slots a job may hold, or what else it asked for")
    resize.add_argument("job", help=_JOB)
    resize.add_argument("slots", nargs="?", metavar="N | MIN:MAX")
    resize.add_argument("--sizes", metavar="N,N", help="only these numbers of slots; `any` for all of the range")
    resize.add_argument("--deadline", metavar="TIME", help="be done by then, as for a cell; `none` for no deadline")
    preempt = resize.add_mutually_exclusive_group()
    preempt.add_argument(
        "--no-preempt", dest="preemptible", action="store_false", default=None, help="it may not be paused"
    )
    preempt.add_argument("--preempt", dest="preemptible", action="store_true", default=None, help="it may be paused")
    explain = command("explain", _explain, "why a job waits, or holds what it holds")
    explain.add_argument("job", help=_JOB)
    if notebook:
        attach = command("attach", _attach, "the live view of a job, in this notebook")
        attach.add_argument("job", help=_JOB)
    command("hosts", _hosts, "the slots of the pool and who holds them")
    policy = command("policy", _policy, "list the policies, switch to NAME, or `describe NAME`")
    policy.add_argument("name", nargs="?", metavar="NAME | describe")
    policy.add_argument("described", nargs="?", metavar="NAME", help="after `describe`: whose options are shown")
    policy.add_argument("--opt", "-o", action="append", default=[], metavar="K=V", help="an option of the policy")
    policy.add_argument("--reason", default="")
    command("status", _status, "the pool in a few lines")
    command("pool", _pool_once, "who holds what, who waits, and what the policy did")
    if not notebook:
        top = command("top", _top, "the same, kept up to date until Ctrl-C")
        top.add_argument("--once", action="store_true", help="one picture, then end")
        for name, (_, text) in {**_PROCESSES, **_PROGRAMS}.items():
            commands.add_parser(name, help=text, add_help=False)
    return parser


def _become(module: str, words: list[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *words])  # noqa: S606 - this process becomes it


# --- the commands -----------------------------------------------------------------------------------------------------


def _print_json(value: Any) -> None:
    print(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column == "ID" else "left", overflow="fold")
    return table


def _jobs(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    jobs = connect().jobs(all=given.all, limit=max(1, given.limit))
    if given.json:
        _print_json(jobs)
        return
    if not jobs:
        console.print("no jobs" if given.all else "no unfinished jobs (--all lists the ended ones)")
        return
    table = _table("ID", "NAME", "OWNER", "STATE", "SLOTS", "ENGINE", "PROGRESS", "SUBMITTED", "NOTE")
    for info in jobs:
        table.add_row(*_job_row(info))
    console.print(table)


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
        escape(spec.name),
        escape(info.owner),
        f"[{_PHASE_STYLE[info.phase]}]{info.phase}[/]",
        f"{len(info.slots)}/{wants}",
        escape(spec.engine),
        done,
        time.strftime("%m-%d %H:%M:%S", time.localtime(info.submitted_at)),
        escape(info.reason),
    ]


def _job(client: Client, word: str) -> Job:
    """The job of this number or name; a name that several have is said."""
    job, said = find(client, word)
    if said:
        print(f"note: {said}", file=sys.stderr)
    return job


def _attach(*_: Any) -> None:
    """The magic does it, which has a page to draw on; here is what it does not understand."""
    raise BadRequest("write %elastic attach JOB, in a cell of a notebook")


def _logs(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    del console
    job = _job(connect(), given.job)
    path = job.folder / f"rank.{given.rank}" / given.stream
    if given.json:
        _print_json({"job": job.id, "rank": given.rank, "stream": given.stream, "path": str(path),
                     "text": job.logs(given.rank, given.stream)})  # fmt: skip
        return
    if not given.follow:
        sys.stdout.write(job.logs(given.rank, given.stream))
        return
    tail = Tail(path)
    while True:
        ended = job.status in ENDED
        tail.copy(sys.stdout)
        if ended:
            return
        time.sleep(TAIL_S)


def _cancel(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    client = connect()
    jobs = [find(client, word, one=True)[0] for word in given.job]
    for job in jobs:
        job.cancel(given.reason)
    if given.json:
        _print_json({"cancelled": [job.id for job in jobs]})
    else:
        console.print(f"told to end: {', '.join(str(job.id) for job in jobs)}")


def _resize(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    from jupyter_elastic.kernel.options import deadline_from, sizes_from  # lazily: it takes IPython

    if (given.slots, given.sizes, given.deadline, given.preemptible) == (None, None, None, None):
        raise BadRequest("say what to change: `resize JOB 1:4`, --sizes, --deadline or --no-preempt")
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
        _print_json(spec)
        return
    wants = str(spec.max_slots) if spec.min_slots == spec.max_slots else f"{spec.min_slots} to {spec.max_slots}"
    wants = " or ".join(map(str, spec.sizes)) or wants
    told = [f"job {job.id} may hold {wants} slot{'' if wants == '1' else 's'}"]
    if spec.deadline_at is not None:
        told.append(f"is to be done by {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(spec.deadline_at))}")
    if not spec.preemptible:
        told.append("is not to be paused")
    console.print(", ".join(told))


def _explain(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    job = _job(connect(), given.job)
    text = job.explain()
    if given.json:
        _print_json({"job": job.id, "text": text})
        return
    console.print(escape(text))
    if job.status == "failed":
        try:
            job.check()
        except JobFailed as problem:
            console.print(escape(str(problem)))


def _hosts(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    hosts = _pool(connect())
    if given.json:
        _print_json({"kind": hosts.kind, "slots": hosts.slots})
        return
    table = _table("SLOT", "STATE", "JOB", "OWNER", "DEVICE", "NOTE")
    style = {"free": "green", "leased": "cyan", "draining": "magenta", "out": "red"}
    for slot in hosts.slots:
        job = "" if slot.job is None else str(slot.job)
        state = f"[{style[slot.state]}]{slot.state}[/]"
        table.add_row(slot.slot, state, job, escape(slot.owner), escape(slot.device), escape(slot.reason))
    console.print(table)
    if hosts.kind == "cpu":
        console.print("[dim]no GPUs here: slots are CPU cores[/dim]")


def _policy(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    if given.name == "describe":
        _describe(given, connect, console)
        return
    if given.described is not None:
        raise BadRequest(f"{given.described!r} is one word too many: write `policy NAME` or `policy describe NAME`")
    client = connect()
    if given.name:
        from jupyter_elastic.kernel.options import option_values

        client.ask(wire.SwitchPolicy(name=given.name, options=option_values(given.opt), reason=given.reason))
    elif given.opt:
        raise BadRequest("--opt belongs to a policy: write `policy NAME --opt K=V`")
    answer = client.ask(wire.ListPolicies())
    policies = answer.policies if isinstance(answer, wire.Policies) else ()
    if given.json:
        _print_json(policies)
        return
    if given.name:
        (active,) = (policy for policy in policies if policy.active)
        options = ", ".join(f"{name}={value}" for name, value in active.options.items())
        told = f"{active.name} ({options})" if options else active.name
        console.print(f"{told} decides from now on; no job was touched by the switch", markup=False)
        return
    table = _table("", "POLICY", "WHAT IT DOES", "OPTIONS")
    for policy in policies:
        options = ", ".join(f"{name}={value}" for name, value in policy.options.items())
        mark = "[green]●[/green]" if policy.active else ""
        table.add_row(mark, escape(policy.name), escape(policy.summary), escape(options))
    console.print(table)


def _describe(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    if given.described is None or given.opt:
        raise BadRequest("write `policy describe NAME`; `policy` lists the names")
    answer = connect().ask(wire.ListPolicies())
    policy = describe.find(answer.policies if isinstance(answer, wire.Policies) else (), given.described)
    if given.json:
        _print_json(policy)
        return
    console.print(f"[bold]{escape(policy.name)}[/bold]{' (active)' if policy.active else ''}: {escape(policy.summary)}")
    options = describe.options(policy)
    changed = any(option.now for option in options)
    table = _table("OPTION", "TYPE", "DEFAULT", *(["NOW"] if changed else []), "MEANING")
    for name, kind, default, now, meaning in options:
        cells = (name, kind, default, *([now] if changed else []), meaning)
        table.add_row(*(escape(cell) for cell in cells))
    if table.row_count:
        console.print(table)
        console.print(f"[dim]set one with: policy {escape(policy.name)} --opt OPTION=VALUE[/dim]")
    else:
        console.print("it has no options")


def _status(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    client = connect()
    hosts, jobs = _pool(client), client.jobs()
    counts = {
        state: sum(slot.state == state for slot in hosts.slots) for state in ("free", "leased", "draining", "out")
    }
    welcome = client.welcome
    if given.json:
        _print_json({"welcome": welcome, "kind": hosts.kind, "slots": counts, "jobs": len(jobs)})
        return
    unit = "GPUs" if hosts.kind == "gpu" else "CPU slots (no GPUs here)"
    said = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    waiting = sum(job.phase == "queued" for job in jobs)
    lines = [
        f"pool: {len(hosts.slots)} {unit}: {said}",
        f"jobs: {len(jobs) - waiting} with slots, {waiting} waiting",
    ]
    if welcome is not None:
        up = human_time(time.time() - welcome.started_at)
        lines.append(f"policy: {welcome.policy} · you are {welcome.user}")
        lines.append(f"daemon: {welcome.package}, pid {welcome.pid}, up {up}")
    console.print(escape("\n".join(lines)))


def _pool_once(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    _top(given, connect, console, once=True)


def _top(given: argparse.Namespace, connect: Connect, console: Console, *, once: bool = False) -> None:
    from jupyter_elastic.widgets import forecasts  # lazily: the simulator is large

    connect()
    forecasts.for_live_views()
    pictures: queue.SimpleQueue[tuple[PoolScreen, float | None]] = queue.SimpleQueue()
    rows = 20 if once else max(5, console.height // 2)

    def take(model: PoolModel, down_since: float | None) -> None:
        pictures.put((model.screen(time.time(), limit=None if given.json else rows), down_since))

    def drawn(screen: PoolScreen, down_since: float | None) -> RenderableType:
        return terminal.picture(screen, down_since=down_since, rows=rows, width=console.width)

    leave = live_pool().add(take)
    try:
        try:
            shown = pictures.get(timeout=FIRST_S)
        except queue.Empty:
            raise DaemonUnreachable("the pool did not answer in time; `jupyter elastic doctor` says why") from None
        if given.json:
            _print_json(shown[0])
        elif once or given.once:
            console.print(drawn(*shown))
        else:
            with Live(drawn(*shown), console=console, screen=console.is_terminal, auto_refresh=False) as page:
                while True:
                    page.update(drawn(*pictures.get()), refresh=True)
    finally:
        leave()


def _pool(client: Client) -> wire.Hosts:
    answer = client.ask(wire.ListHosts())
    if not isinstance(answer, wire.Hosts):
        raise ElasticError(f"the daemon answered {type(answer).__name__} where its slots were due; update it")
    return answer
