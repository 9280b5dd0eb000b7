"""Implements `%%distribute` and `%%policy`: parse, package, call the client, show a view. No logic of their own.

Our own errors are shown as their message alone: a traceback of this package would only distract.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from IPython.core.completer import SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.magic import Magics, cell_magic, magics_class
from msgspec.structs import replace

from jupyter_elastic.client import Client, services
from jupyter_elastic.client.job import Job, Values, check_size, find
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.forkserver import forked_workers
from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.jobfiles.sessions import SessionFolder, listed
from jupyter_elastic.jobfiles.submit_environment import environment
from jupyter_elastic.kernel import capture, library_settings
from jupyter_elastic.kernel.cell_options import CellOptions
from jupyter_elastic.kernel.options import PARSER, long_options, parse, policy_line
from jupyter_elastic.kernel.session_options import existing, fitted, session_request
from jupyter_elastic.kernel.shipping import with_folder
from jupyter_elastic.kernel.submission import EngineChoice, choose_engine, default_engine, interrupted, report, submit
from jupyter_elastic.platform import detached
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobInfo
from jupyter_elastic.types.errors import BadRequest, ElasticError
from jupyter_elastic.widgets.front_end import cell_id, in_process, request, surface

QUIET_S = 2.0
"""Seconds after which a waiting `%elastic session pull` or `push` explains why it waits."""
_SESSION = re.compile(r"%%distribute\b.*?\s--session[ =]([\w.-]+)")
ENDS_S = 1.0
"""Seconds after an interrupt within which a request to end the kernel may follow."""


def load(shell: Any) -> ElasticMagics:
    """Register the cell magics, and start to connect to the pool so that the first cell need not wait for it."""
    magics = ElasticMagics(shell)
    shell.register_magics(magics)
    with contextlib.suppress(Exception):  # an interface of IPython's own; without it there is no completion
        shell.set_hook("complete_command", _complete, re_key=re.compile(r"%%distribute"))
    with contextlib.suppress(Exception):  # of IPython's completer, which `%config` may have replaced
        shell.Completer.custom_matchers.append(magics.session_names())
    shell.input_transformers_cleanup.extend([_with_body, magics.automatic()])
    shell.events.register("pre_execute", functools.partial(magics.within, 1))
    shell.events.register("post_execute", functools.partial(magics.within, -1))
    if "distributed" in shell.magics_manager.magics["cell"]:
        print("note: %%distributed is nbdistributed's, %%distribute is jupyter-elastic's", file=sys.stderr)  # noqa: T201
    threading.Thread(target=_warm, name="jupyter-elastic start", daemon=True).start()
    return magics


def _with_body(lines: list[str]) -> list[str]:
    """Give a cell that only requests help a body: IPython refuses an empty one before it calls the magic."""
    asks = bool(lines) and lines[0].startswith("%%distribute") and bool({"--help", "-h"} & set(lines[0].split()))
    return [lines[0].rstrip("\n") + "\n", "pass\n"] if asks else lines


def _complete(_shell: Any, event: Any) -> list[str]:
    """Complete options of `%%distribute`, the notebook's names after --in, a session's after --out, and sessions."""
    option = next(reversed(event.line[: len(event.line) - len(event.symbol)].split()), "")
    if option == "--in":
        return sorted(name for name in _shell.user_ns if not name.startswith("_"))
    if option == "--session":
        return [folder.name for folder in listed()]
    if option == "--out" and (named := _SESSION.search(event.line)):
        return sorted(SessionFolder(named[1]).names())
    return long_options()


def _warm() -> None:
    """Prepare the first cell while a person still writes it.

    This loads the views, starts daemon and agent, imports the forecasts, and warms a parent that has the framework.
    """
    with contextlib.suppress(Exception):  # the first cell reports errors
        from jupyter_elastic.widgets import job_display

        job_display.prepare()
        default_engine(Payload(source="", filename="", first_line=1, names=b""))
        services.ensure()
        if detached.agent_is_a_service():  # a parent from here, and its workers, would end with this server
            return
        for framework in _likely_frameworks():
            forked_workers.address(sys.executable, {**os.environ, **environment(os.environ)}, (framework,)).warm_up()


def _likely_frameworks() -> list[str]:
    """Return the frameworks that the notebook has imported, else one that is installed, torch before TensorFlow."""
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
        self._session = ""
        """Session in which all cells run; empty: none."""
        self._within = 0
        self._counted = 1
        """Number of cells since loading, including the loading one: used if the shell gives no numbers."""

    @cell_magic
    def distribute(self, line: str, cell: str) -> Any:  # noqa: D102 - its help is options' own, below
        if {"--help", "-h"} & set(line.split()):
            print(PARSER.format_help())  # noqa: T201
            return None
        return self._distribute(line, cell, first_line=2)

    @cell_magic
    def elastic_session_cell(self, line: str, cell: str) -> Any:
        """Run this cell in a session: what `%elastic session auto NAME` puts above each cell."""
        return self._distribute(f"--session {line}", cell, first_line=1)

    def _distribute(self, line: str, cell: str, *, first_line: int) -> Any:
        options = fitted(parse(line, os.environ), self._unfinished)
        package = self._package(options, cell, first_line)
        choice = choose_engine(package.payload, options)
        for note in report(package, options, choice):
            print(note)  # noqa: T201
        if options.dry_run:
            return None
        return self._run(options, package, choice)

    distribute.__doc__ = PARSER.format_help()

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
            print(f"policy {name} decides from now on; `%elastic policy list` lists all")  # noqa: T201
            return None
        from jupyter_elastic.views import forecasts
        from jupyter_elastic.views.updater import updater

        found = forecasts.compare(self.client().ask, name, cell, options)
        updater().follower.shadows.begin(name, options, cell)  # for `%elastic pool show` of this notebook
        return found

    def client(self) -> Client:
        """Return this kernel's connection; start daemon and agent when there are none."""
        services.ensure()
        if self._client is None:
            self._client = Client()
        return self._client

    def _unfinished(self) -> list[JobInfo]:
        """Return this user's jobs that have not ended."""
        client = self.client()
        jobs = client.jobs()
        return [job for job in jobs if client.welcome is not None and job.owner == client.welcome.user]

    # --- sessions

    def pull(self, session: str, names: Sequence[str], ranks: tuple[int, ...] = ()) -> dict[Any, Any]:
        """Return values of a session's variables: rank -> value of one name, name -> rank -> value of several.

        BadRequest when there is no such session or name.
        """
        results = self._in_session(session, ranks, capture=(), out=tuple(names)).results
        found = {name: {rank: values[name] for rank, values in results.items() if name in values} for name in names}
        for name, values in found.items():
            if not values:
                close = get_close_matches(name, existing(session).names(), 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                hint = next((f": {given.lost[name]}" for given in results.values() if name in given.lost), hint)
                raise BadRequest(f"no rank of the session {session!r} has {name!r}{hint}")
        return found if len(names) > 1 else found[names[0]]

    def push(self, session: str, names: Sequence[str], ranks: tuple[int, ...] = ()) -> None:
        """Send these names of the notebook to a session, replacing its values. BadRequest, PackagingError."""
        self._in_session(session, ranks, capture=tuple(names))

    def follow(self, session: str, *, on: bool) -> None:
        """Run all following cells in a session, or none; BadRequest when there is no such session."""
        if on:
            existing(session)
            print(  # noqa: T201
                f"all cells run in the session {session} now, but those that begin with % or !; `%elastic session "
                "--off` ends that"
            )
        self._session = session if on else ""

    def within(self, more: int) -> None:
        """Count nested cells: code that IPython runs meanwhile, as by `%timeit`, is no cell of its own."""
        self._counted += self._within == 0 < more
        self._within = max(self._within + more, 0)

    def automatic(self) -> Callable[[list[str]], list[str]]:
        """Return the transformer of cells for `follow`."""

        def transformed(lines: list[str]) -> list[str]:
            text = "".join(lines).strip()
            if (
                not self._session
                or self._within > 0
                or not text
                or text.startswith(("%", "!", "?"))
                or text.endswith("?")
            ):
                return lines
            return lines if _from_the_page(self.shell) else [f"%%elastic_session_cell {self._session}\n", *lines]

        transformed.has_side_effects = True  # type: ignore[attr-defined]  # a cell is whole or not without it
        return transformed

    def session_names(self) -> Any:
        """Return a matcher for IPython's completer: in a cell of a session it offers the variables of rank 0."""

        @context_matcher()
        def matcher(context: Any) -> SimpleMatcherResult:
            named = _SESSION.match(context.full_text)
            session, token = named[1] if named else self._session, context.token
            names = SessionFolder(session).names() if session and token.isidentifier() else ()
            return {"completions": [SimpleCompletion(name) for name in sorted(names) if name.startswith(token)]}

        return matcher

    def _in_session(self, session: str, ranks: tuple[int, ...], **moved: Any) -> Job:
        """Run an empty cell in a session, which only moves names there or back; return the ended job."""
        existing(session)
        options = fitted(CellOptions(session=session, ranks=ranks, preemptible=False, **moved))
        package = self._package(options, "None")
        client = self.client()
        job = submit(client, options, package, choose_engine(package.payload, options), f"cell-{self._number}")
        try:
            try:
                job.wait(QUIET_S)
            except TimeoutError:
                print(job.explain())  # noqa: T201
                job.wait()
        except KeyboardInterrupt:
            raise interrupted(job) from None
        job.check()
        return job

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _number(self) -> int:
        """The number in the brackets beside this cell."""
        return max(len(self.shell.user_ns.get("In", ())) - 1, 0) or self._counted

    def _package(self, options: CellOptions, cell: str, first_line: int = 1) -> capture.Package:
        package = capture.package(
            cell,
            self.shell.user_ns,
            filename=f"<In[{self._number}]>",
            code_name=_code_name(self.shell, cell, self._number),
            first_line=first_line,
            capture=options.capture,
            out=options.out,
            env=options.env,
            seed=options.seed,
            labels={name: f"<In[{number}]>" for name, number in _cells(self.shell).items()},
            session=session_request(options, reloads=_reloads(self.shell)),
            kept=SessionFolder(options.session).names() if options.session else (),
        )
        if not options.session:
            package = replace(package, notes=(*package.notes, *library_settings.notes(package.payload.source)))
        return with_folder(package, options.folder)

    def _run(self, options: CellOptions, package: capture.Package, choice: EngineChoice) -> Any:
        from jupyter_elastic.widgets import bundle
        from jupyter_elastic.widgets.job_display import JobDisplay

        if surface(self.shell) == "widget":
            bundle.check()
        client = self.client()
        check_size(client, options.min_slots)
        notebook, cell = _place(self.shell)
        name = f"cell-{self._number}"
        job = submit(client, options, package, choice, name, notebook=notebook, cell=cell)
        if options.handle:
            self.shell.user_ns[options.handle] = job
        view = None
        try:
            view = JobDisplay(self.shell, job, self._kind(client), waits=not options.detach)
            if options.detach or not view.wait():
                self._later(job, options, view.ended)
                # A named handle is not shown too: its present text would stay in the notebook, out of date, for ever.
                return None if options.detach and options.handle else job
        except KeyboardInterrupt:
            if _kernel_ends(self.shell):
                raise  # the job goes on; whoever comes back finds it
            raise interrupted(job, view) from None
        job.check()
        self._bring(job, options.out)
        return None

    def _bring(self, job: Job, names: Iterable[str]) -> None:
        """Set these --out names in the notebook."""
        values, notes = returned(job.results, names)
        self.shell.user_ns.update(values)
        for note in notes:
            print(note)  # noqa: T201

    def _later(self, job: Job, options: CellOptions, ended: threading.Event) -> None:
        """Set a detached job's --out names at the begin of a later cell; until then they have no value.

        An old value under such a name would be taken for the job's. No running cell has its values changed.
        """
        if not options.out:
            return
        notebook, events, handle = self.shell.user_ns, self.shell.events, options.handle or f"_{self._number}"
        for name in options.out:
            notebook.pop(name, None)
        notebook[handle] = job
        names = ", ".join(options.out) + (" comes" if len(options.out) == 1 else " come")
        when = f"with the first cell that begins after the end of job {job.id}"
        print(f"{names} back {when}; until then `{handle}.result()` waits for it")  # noqa: T201

        def hand_over() -> None:
            if not ended.is_set() or self._within > 1 or _from_the_page(self.shell):
                return
            events.unregister("pre_execute", hand_over)
            left = [name for name in options.out if name in notebook]
            said = f"{names} from job {job.id}" + (f"; what was set since stays: {', '.join(left)}" if left else "")
            try:
                job.check()
                self._bring(job, [name for name in options.out if name not in left])
            except ElasticError:
                said = f"note: job {job.id} is {job.known.phase} and nothing comes back; `{handle}.check()` says why"
            print(said)  # noqa: T201

        events.register("pre_execute", hand_over)

    def _kind(self, client: Client) -> str:
        """Return the kind of the pool's slots, `gpu` or `cpu`: requested once, it never changes while a pool lives."""
        if not self._slots_are:
            self._slots_are = expect(client.ask(wire.ListHosts()), wire.Hosts).kind
        return self._slots_are

    def attach(self, word: str) -> Job:
        """Show the live view of a job, by number or name, below this cell; NotFound when there is none."""
        from jupyter_elastic.widgets.job_display import JobDisplay

        client = self.client()
        job, note = find(client, word)
        if note:
            print(f"note: {note}")  # noqa: T201
        JobDisplay(self.shell, job, self._kind(client)).replay()
        return job


def _kernel_ends(shell: Any) -> bool:
    """Return whether an interrupt comes from the kernel's end or restart: a server sends both in quick succession."""
    if in_process(shell):
        return False
    limit = time.monotonic() + ENDS_S
    with contextlib.suppress(KeyboardInterrupt):  # a second interrupt is meant for the cell
        while not getattr(shell, "exit_now", False) and time.monotonic() < limit:
            time.sleep(0.01)
    return bool(getattr(shell, "exit_now", False))


def returned(results: Mapping[int, Values], names: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the --out values, each of the lowest rank that has it, and notes on values that some ranks lack."""
    values, notes = {}, []
    for name in names:
        rank = next((rank for rank, given in results.items() if name in given), None)
        lost = next((given.lost[name] for given in results.values() if name in given.lost), "")
        if rank is None:
            why = f"it did not come back: {lost}" if lost else "no rank has set it"
            notes.append(f"note: --out {name}: {why}")
            continue
        values[name] = results[rank][name]
        if rank != min(results):
            why = f"rank {min(results)}'s did not come back ({lost})" if lost else f"rank {min(results)} has not set it"
            notes.append(f"note: --out {name}: {why}; this is rank {rank}'s")
    return values, notes


def _from_the_page(shell: Any) -> bool:
    """Return whether the running code is no cell but the page's own request, which leaves no history."""
    with contextlib.suppress(Exception):
        content = request(shell)["content"]
        return bool(content.get("silent")) or not content.get("store_history", True)
    return False


def _reloads(shell: Any) -> bool:
    """Return whether the notebook reloads edited modules: `%autoreload 2` or 3."""
    magics = shell.magics_manager.registry.get("AutoreloadMagics")
    reloader = getattr(magics, "_reloader", None)
    return bool(getattr(reloader, "enabled", False) and getattr(reloader, "check_all", False))


def _cells(shell: Any) -> Mapping[str, int]:
    """Return the numbers of the notebook's cells by the file names of their code, if IPython knows them."""
    found: Mapping[str, int] = getattr(shell.compile, "_filename_map", {})
    return found


def _code_name(shell: Any, cell: str, number: int) -> str:
    """Return the file name of this cell's code, as the kernel compiles the same text; empty if it has no names."""
    if (name_of := getattr(shell.compile, "get_code_name", None)) is None:
        return ""
    last = (getattr(getattr(shell, "history_manager", None), "input_hist_raw", None) or [""])[-1]
    texts = [last, f"{last}\n", cell] if cell.strip() in last else [cell]
    names = [str(name_of(text, text, number)) for text in texts]
    return next((name for name in names if name in _cells(shell)), names[0])


def _place(shell: Any) -> tuple[str, str]:
    """Return notebook and cell id, if the front end reports them."""
    return os.environ.get("JPY_SESSION_NAME", "")[:4096], cell_id(shell)
