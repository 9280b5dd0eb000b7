"""Finds the commands of `jupyter elastic` and `%elastic` by entry point: a new one is a file and an entry point.

An entry point of the group `jupyter_elastic.commands` names a `Command`, or a function `main(argv) -> exit code` for a
command that has a parser of its own and runs in a terminal only; its docstring begins with its line of the help. Knows
argparse and what commands share; connects to no pool.
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
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.platform import entry_points
from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest, ElasticError
from jupyter_elastic.types.texts import visible

GROUP = "jupyter_elastic.commands"
Connect: TypeAlias = Callable[[], Client]
Main: TypeAlias = Callable[[Sequence[str]], int | None]


class Command(NamedTuple):
    """A command with arguments that argparse parses."""

    summary: str
    """One line for the help."""
    run: Callable[[argparse.Namespace, Connect, Console], int | None]
    """Runs the command with arguments, a function that connects to the pool, and a console; None is exit code 0."""
    arguments: Callable[[argparse.ArgumentParser], object] = bool
    """Adds its arguments; `--json` is added to every command."""
    terminal: bool = True
    notebook: bool = True
    """Places of the command: `terminal` for `jupyter elastic NAME`, `notebook` for `%elastic NAME`."""


def names() -> list[str]:
    """Return the names of all installed commands, sorted. BadRequest when the package was not installed as one."""
    found = sorted(entry_points.installed(GROUP))
    if not found:
        raise BadRequest("no command is installed; install the package again: pip install jupyter-elastic")
    return found


def load(name: str) -> Command | Main:
    """Return the command of this name. BadRequest when its package is broken, or two packages have one of this name."""
    command: Command | Main = entry_points.load(entry_points.installed(GROUP)[name], BadRequest)
    return command


def listed(names: Iterable[str], *, notebook: bool) -> dict[str, Command]:
    """Return those of these commands that work after `%elastic`, or in a terminal. Broken ones are left out."""
    found = {name: command for name in names if (command := _known(name)) is not None}
    return {name: command for name, command in found.items() if (command.notebook if notebook else command.terminal)}


def parser(prog: str, *, notebook: bool, first: str = "") -> argparse.ArgumentParser:
    """Return the parser of the command `first`, or of all if there is none; parsed arguments have the `run` to call."""
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
    """Return the command for lists; None if it can't be loaded, which `load` reports when it is used."""
    try:
        found = load(name)
    except BadRequest:
        return None
    if isinstance(found, Command):
        return found
    summary = re.split(r"[.;\n]", found.__doc__ or name)[0]
    return Command(summary[:1].lower() + summary[1:], lambda *_: None, notebook=False)


class _Parser(argparse.ArgumentParser):
    """A parser that suggests a command for a mistyped one; in a notebook it raises BadRequest and never exits."""

    def __init__(self, *, notebook: bool, **options: Any) -> None:
        super().__init__(**options)
        self.notebook = notebook

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; a command that has a default for `more` gets there the words behind `--`, as they are."""
        words = list(args or ())
        if self.get_default("more") is None or "--" not in words:
            return super().parse_known_args(args, namespace)
        found, unknown = super().parse_known_args(words[: words.index("--")], namespace)
        found.more = words[words.index("--") + 1 :]
        return found, unknown

    def error(self, message: str) -> NoReturn:
        if match := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            close = get_close_matches(match[1], re.findall(r"[\w-]+", match[2]), 1)
            message += f"; did you mean {close[0]}?" if close else ""
        if not self.notebook:
            super().error(message)
        raise BadRequest(f"{self.prog}: {message}")


def attention(client: Client) -> str:
    """Return the problem that keeps the pool from taking jobs; empty without one, or if the daemon is too old."""
    with contextlib.suppress(ElasticError):
        return expect(client.ask(wire.ReadProblem()), wire.Problem).text
    return ""


def print_json(value: Any) -> None:
    """Print a value for `--json`, without control characters in texts, though JSON allows some."""
    print(visible(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False), lines=True))


def table(*columns: str) -> Table:
    """Return an empty table in the style of all commands."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column == "ID" else "left", overflow="fold")
    return made
