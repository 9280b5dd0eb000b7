"""Implements `%elastic`: the commands of `jupyter elastic` in a notebook, with live views if the page can show them."""

from __future__ import annotations

import contextlib
import re
import time
from html import escape
from typing import Any

import msgspec
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.display import display as show

from jupyter_elastic.cli import commands, main, old_words
from jupyter_elastic.jobfiles.sessions import NAME, SessionFolder, listed
from jupyter_elastic.kernel.magic import ElasticMagics
from jupyter_elastic.kernel.option_values import ranks_from
from jupyter_elastic.types.texts import visible

TIMELINE_MIME = "application/vnd.jupyter-elastic.timeline+json"
POOL_MIME = "application/vnd.jupyter-elastic.pool+json"
"""MIME types that our front end draws live."""
KEPT_JOBS = 60
"""Maximum number of jobs whose rows a notebook's file keeps."""


def load(shell: Any, cells: ElasticMagics) -> None:
    """Register the line magic, which uses the connection of the cell magics."""
    shell.register_magics(LineMagics(shell, cells))
    with contextlib.suppress(Exception):  # an interface of IPython's own; without it there is no completion
        shell.set_hook("complete_command", _complete_elastic, re_key=re.compile(r"%?elastic"))


def _complete_elastic(shell: Any, event: Any) -> list[str]:
    """Complete nouns and verbs, and after those about sessions their names, then names of variables."""
    before = event.line[: len(event.line) - len(event.symbol)].split()[1:]
    if before:
        before[:1] = old_words.OLD.get(before[0], before[0]).split()
    match before:
        case ["session", "pull", name, *_]:
            return sorted(SessionFolder(name).names()) if NAME.fullmatch(name) else []
        case ["session", "push", _, *_]:
            return sorted(name for name in shell.user_ns if not name.startswith("_"))
        case ["session", "auto" | "end" | "pull" | "push"]:
            return [folder.name for folder in listed()]
    return commands.next_words(commands.listed(commands.installed(), notebook=True), *before)


@magics_class
class LineMagics(Magics):
    """`%elastic`."""

    def __init__(self, shell: Any, cells: ElasticMagics) -> None:
        super().__init__(shell)
        self._cells = cells

    @line_magic
    def elastic(self, line: str) -> Any:
        """Ask the pool, or give it an order; `%elastic --help` lists all words.

        %elastic job list [--all] | job logs JOB [--rank N] | job explain JOB | job cancel JOB |
        job attach JOB (its live view) | pool status | pool show (who holds what, who waits) |
        pool timeline (past and likely future) | host slots | policy list (the picker, with its what-if) |
        policy use NAME [--opt k=v] | session list | session auto NAME | session auto --off |
        session pull NAME VARIABLE... | session push NAME VARIABLE... | session end NAME
        """
        from jupyter_elastic.widgets.front_end import surface

        words = old_words.renewed(line.split() or ["pool", "status"], ())
        match words:
            case ["pool", "status" | "show"] | ["policy", "list"] if surface(self.shell) == "widget":
                return self._show_pool(words)
            case ["pool", "timeline", *_] if "--json" not in words and surface(self.shell) != "terminal":
                return self._show_timeline(line)
            case ["job", "attach", job] if not job.startswith("-"):
                return self._cells.attach(job)
            case ["session", "auto" | "pull" | "push" as verb, *_]:
                return self._session(verb, line)
        main.notebook(line, self._cells.client, page=surface(self.shell) != "terminal")
        return None

    def _session(self, verb: str, line: str) -> Any:
        """Run a command about a session that needs this notebook."""
        given = main.parsed(line)
        if given is None:
            return None
        if verb == "auto":
            return self._cells.follow(given.name, on=not given.off)
        ranks = ranks_from(given.ranks) if given.ranks else ()
        names = [name for words in given.names for name in words.split(",") if name]
        return (self._cells.pull if verb == "pull" else self._cells.push)(given.name, names, ranks)

    def _show_pool(self, words: list[str]) -> None:
        """Show the live pool, with the picker open after `policy list`; below it the form that the saved file keeps."""
        from jupyter_elastic.cli import pool_commands
        from jupyter_elastic.widgets.pool_widget import PoolWidget

        client = self._cells.client
        text, picture = main.text(words, client), main.text(["pool", "show"], client)
        screen = pool_commands.read(KEPT_JOBS)
        if problem := commands.attention(client()):
            print(f"attention: {visible(problem)}")
        widget = PoolWidget(picking=words == ["policy", "list"])
        show(widget)
        made = time.strftime("%H:%M:%S, %d %b %Y", time.localtime(screen.at))
        html = (
            f'<figure class="jelastic-static jelastic-{widget.kept}" aria-label="the pool" style="margin:0">'
            f"<figcaption>The pool as of {made}</figcaption>"
            f'<pre style="font-family:monospace">{escape(picture)}</pre></figure>'
        )
        bundle = {"text/plain": f"{text}\nas of {made}", "text/html": html}
        show({**bundle, POOL_MIME: {"screen": msgspec.to_builtins(screen)}}, raw=True)

    def _show_timeline(self, line: str) -> None:
        """Show the timeline as a picture, which the saved file keeps."""
        from jupyter_elastic.cli import timeline_command
        from jupyter_elastic.views import timeline_page

        given = main.parsed(line)
        if given is None:
            return
        look = timeline_command.look_of(given)
        self._cells.client()
        screen = timeline_command.read(look)
        bundle = {"text/plain": timeline_command.text(screen), "text/html": timeline_page.html(screen)}
        saved = {"look": msgspec.to_builtins(look), "screen": msgspec.to_builtins(screen)}
        show({**bundle, TIMELINE_MIME: saved}, raw=True)
