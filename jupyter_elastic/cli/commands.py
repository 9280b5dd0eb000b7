"""The commands of `jupyter elastic` and `%elastic`, found by entry point: a new one is a file and an entry point.

An entry point of the group `jupyter_elastic.commands` names a `Command`, or a function `main(argv) -> exit code` for
what has a parser of its own and runs in a terminal only; its docstring begins with its line of the help. Knows argparse
and what commands share; asks no pool.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn, TypeAlias

import msgspec
from rich.console import Console
from rich.table import Table

from jupyter_elastic.client import Client
from jupyter_elastic.client.requests import expect
from jupyter_elastic.platform import plugins
from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest, ElasticError
from jupyter_elastic.types.texts import visible

GROUP = "jupyter_elastic.commands"
Connect: TypeAlias = Callable[[], Client]
Main: TypeAlias = Callable[[Sequence[str]], int | None]


class Command(NamedTuple):
    """A command whose arguments argparse reads."""

    summary: str
    """One line for the help."""
    run: Callable[[argparse.Namespace, Connect, Console], int | None]
    """Does it: the arguments, a function that connects to the pool, where to print. Gives the exit code, None for 0."""
    arguments: Callable[[argparse.ArgumentParser], object] = bool
    """Adds its arguments; `--json` is added to every command."""
    terminal: bool = True
    notebook: bool = True
    """Where it can be given: in `jupyter elastic NAME`, in `%elastic NAME`."""


def names() -> list[str]:
    """The names of all installed commands, sorted. BadRequest when the package was not installed as one."""
    found = sorted(plugins.installed(GROUP))
    if not found:
        raise BadRequest("no command is installed; install the package again: pip install jupyter-elastic")
    return found


def load(name: str) -> Command | Main:
    """The command of this name. BadRequest when its package is broken, or two packages bring one of this name."""
    command: Command | Main = plugins.load(plugins.installed(GROUP)[name], BadRequest)
    return command


def listed(names: Iterable[str], *, notebook: bool) -> dict[str, Command]:
    """Those of these commands that can be given behind `%elastic`, or in a terminal. One that is broken is left out."""
    found = {name: command for name in names if (command := _known(name)) is not None}
    return {name: command for name, command in found.items() if (command.notebook if notebook else command.terminal)}


def parser(prog: str, *, notebook: bool, first: str = "") -> argparse.ArgumentParser:
    """The parser of the command `first`, of all where that is none; the parsed arguments have the command's `run`."""
    made = _Parser(prog=prog, description="A shared, elastic GPU pool inside Jupyter.", notebook=notebook)
    made.add_argument("--version", action="version", version=__version__)
    subparsers = made.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    known = names()
    one = listed([first], notebook=notebook) if first in known else {}
    for name, command in (one or listed(known, notebook=notebook)).items():
        sub = subparsers.add_parser(name, help=command.summary, description=command.summary, notebook=notebook)
        sub.add_argument("--json", action="store_true", help="print JSON")
        command.arguments(sub)
        sub.set_defaults(run=command.run)
    return made


def _known(name: str) -> Command | None:
    """The command as it is listed; None for one that can't be loaded, which `load` says when it is given."""
    try:
        found = load(name)
    except BadRequest:
        return None
    if isinstance(found, Command):
        return found
    summary = re.split(r"[.;\n]", found.__doc__ or name)[0]
    return Command(summary[:1].lower() + summary[1:], lambda *_: None, notebook=False)


class _Parser(argparse.ArgumentParser):
    """Names the closest command when one is mistyped; raises BadRequest in a notebook, where exiting would be wrong."""

    def __init__(self, *, notebook: bool, **options: Any) -> None:
        super().__init__(**options)
        self.notebook = notebook

    def error(self, message: str) -> NoReturn:
        if match := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            close = get_close_matches(match[1], re.findall(r"[\w-]+", match[2]), 1)
            message += f"; did you mean {close[0]}?" if close else ""
        if not self.notebook:
            super().error(message)
        raise BadRequest(f"{self.prog}: {message}")


def attention(client: Client) -> str:
    """What keeps the pool from taking jobs; empty when nothing does, or the daemon is too old to say."""
    with contextlib.suppress(ElasticError):
        return expect(client.ask(wire.ReadProblem()), wire.Problem).text
    return ""


def print_json(value: Any) -> None:
    """What `--json` prints; no control character of a text, though JSON allows some."""
    print(visible(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False), lines=True))


def table(*columns: str) -> Table:
    """An empty table as all commands print them."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column == "ID" else "left", overflow="fold")
    return made
