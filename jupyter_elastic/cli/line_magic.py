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

from jupyter_elastic.cli import commands, main
from jupyter_elastic.jobfiles.sessions import NAME, SessionFolder, listed
from jupyter_elastic.kernel.magic import ElasticMagics
from jupyter_elastic.kernel.option_values import ranks_from
from jupyter_elastic.types.texts import visible

TIMELINE_MIME = "application/vnd.jupyter-elastic.timeline+json"
POOL_MIME = "application/vnd.jupyter-elastic.pool+json"
"""MIME types that our front end draws live."""
KEPT_JOBS = 60
"""Maximum number of jobs whose rows a notebook's file keeps."""
SESSION_WORDS = frozenset({"pull", "push", "session"})
"""Commands about sessions that need the notebook's names or cells."""


def load(shell: Any, cells: ElasticMagics) -> None:
    """Register the line magic, which uses the connection of the cell magics."""
    shell.register_magics(LineMagics(shell, cells))
    with contextlib.suppress(Exception):  # an interface of IPython's own; without it there is no completion
        shell.set_hook("complete_command", _complete_elastic, re_key=re.compile(r"%?elastic"))


def _complete_elastic(shell: Any, event: Any) -> list[str]:
    """Complete commands, and after those about sessions their names, then names of variables."""
    before = event.line[: len(event.line) - len(event.symbol)].split()[1:]
    if before[:1] == ["pull"] and len(before) > 1:
        return sorted(SessionFolder(before[1]).names()) if NAME.fullmatch(before[1]) else []
    if before[:1] == ["push"] and len(before) > 1:
        return sorted(name for name in shell.user_ns if not name.startswith("_"))
    if len(before) == 1 and before[0] in {*SESSION_WORDS, "end"}:
        return [folder.name for folder in listed()]
    return list(commands.listed(commands.names(), notebook=True))


@magics_class
class LineMagics(Magics):
    """`%elastic`."""

    def __init__(self, shell: Any, cells: ElasticMagics) -> None:
        super().__init__(shell)
        self._cells = cells

    @line_magic
    def elastic(self, line: str) -> Any:
        """Ask the pool, or tell it something.

        %elastic status | pool (who holds what, who waits) | jobs [--all] | logs JOB [--rank N] | cancel JOB |
        explain JOB | attach JOB (its live view) | hosts | timeline (past and likely future) |
        policy (the picker, with its what-if) | policy NAME [--opt k=v] | sessions |
        session NAME --auto | session --off | pull NAME VARIABLE... | push NAME VARIABLE... | end NAME
        """
        from jupyter_elastic.widgets.front_end import surface

        arguments = line.split()
        if arguments in ([], ["status"], ["pool"], ["policy"]) and surface(self.shell) == "widget":
            return self._show_pool(arguments)
        if arguments[:1] == ["timeline"] and "--json" not in arguments and surface(self.shell) != "terminal":
            return self._show_timeline(line)
        if arguments[:1] == ["attach"] and len(arguments) == 2 and not arguments[1].startswith("-"):
            return self._cells.attach(arguments[1])
        if arguments[:1] and arguments[0] in SESSION_WORDS:
            return self._session(arguments[0], line)
        main.notebook(line, self._cells.client, page=surface(self.shell) != "terminal")
        return None

    def _session(self, word: str, line: str) -> Any:
        """Run a command about a session that needs this notebook."""
        given = main.parsed(line)
        if given is None:
            return None
        if word == "session":
            return self._cells.follow(given.name, on=given.auto)
        ranks = ranks_from(given.ranks) if given.ranks else ()
        names = [name for words in given.names for name in words.split(",") if name]
        return (self._cells.pull if word == "pull" else self._cells.push)(given.name, names, ranks)

    def _show_pool(self, arguments: list[str]) -> None:
        """Show the live pool, with the picker open after `policy`; below it the form that the saved file keeps."""
        from jupyter_elastic.cli import pool_commands
        from jupyter_elastic.widgets.pool_widget import PoolWidget

        client = self._cells.client
        text, picture = main.text(arguments or ["status"], client), main.text(["pool"], client)
        screen = pool_commands.read(KEPT_JOBS)
        if problem := commands.attention(client()):
            print(f"attention: {visible(problem)}")
        widget = PoolWidget(picking=arguments == ["policy"])
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
