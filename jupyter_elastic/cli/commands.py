"""Finds the commands of `jupyter elastic` and `%elastic` by entry point: a new one is a file and an entry point.

An entry point of the group `jupyter_elastic.commands` names a `Command`, or a function `main(argv) -> exit code` for a
command that has a parser of its own and runs in a terminal only; its docstring begins with its line of the help. The
entry point `job.list` is the command `job list`. Knows argparse and what commands share; connects to no pool.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple, NoReturn, TypeAlias

import msgspec
from rich.console import Console
from rich.table import Table

from jupyter_elastic.cli import old_words
from jupyter_elastic.client import Client
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.platform import entry_points
from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest, ElasticError
from jupyter_elastic.types.texts import visible

GROUP = "jupyter_elastic.commands"
NOUNS = {
    "job": "list, follow, explain, resize and cancel jobs",
    "session": "list and end sessions, exchange variables with them",
    "host": "list slots and hosts, add, drain and remove hosts",
    "policy": "list, describe and switch the rules that assign slots",
    "pool": "show the pool, its past and its use; pause or stop it",
    "admin": "run the pool's services, back up its journal, build Horovod",
    "sim": "simulate policies, choose a job's size, balance unequal hosts",
}
"""Lines of the help for groups of commands; a group of another package's has the names of its commands instead."""
COLUMNS = 79
Connect: TypeAlias = Callable[[], Client]
Main: TypeAlias = Callable[[Sequence[str]], int | None]
Installed: TypeAlias = Mapping[str, list[EntryPoint]]


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


def installed() -> Installed:
    """Return all installed commands by name, such as `job list`, in the order of the help. BadRequest without any."""
    found = {name.replace(".", " ", 1): entries for name, entries in entry_points.installed(GROUP).items()}
    if not found:
        raise BadRequest("no command is installed; install the package again: pip install jupyter-elastic")
    order = list(NOUNS)

    def rank(name: str) -> tuple[bool, int, str]:
        noun, of_group, _ = name.partition(" ")
        return bool(of_group), order.index(noun) if noun in NOUNS else len(order), name

    return {name: found[name] for name in sorted(found, key=rank)}


def load(entries: list[EntryPoint]) -> Command | Main:
    """Return the command. BadRequest when its package is broken, or two packages have one of this name."""
    command: Command | Main = entry_points.load(entries, BadRequest)
    return command


def listed(known: Installed, *, notebook: bool) -> dict[str, Command]:
    """Return those of these commands that work after `%elastic`, or in a terminal. Broken ones are left out."""
    found = {name: command for name, entries in known.items() if (command := _summarized(entries)) is not None}
    return {name: command for name, command in found.items() if (command.notebook if notebook else command.terminal)}


def parsed(prog: str, arguments: Sequence[str], *, notebook: bool) -> argparse.Namespace:
    """Find the command and parse its arguments; the result has the `run` to call. Prints requested help, and exits.

    Words that can't be understood end a terminal's process with 2, and are BadRequest in a notebook.
    """
    known = installed()
    words = old_words.renewed(arguments, known)
    noun = words[0] if words and any(name.startswith(f"{words[0]} ") for name in known) else ""
    depth = 1 + bool(noun)
    if (name := " ".join(words[:depth])) in known:
        if noun == name:
            raise BadRequest(f"{known[noun][0].value}: no command can be called {noun!r}, which is a group of commands")
        command, rest = load(known[name]), words[depth:]
        if isinstance(command, Command) and (command.notebook if notebook else command.terminal):
            return parser(f"{prog} {name}", command, notebook=notebook).parse_args(rest)
        if not isinstance(command, Command) and not notebook:
            return argparse.Namespace(run=lambda *_: command(rest))
    return _explain(prog, known, noun, words[bool(noun) :], notebook=notebook)


def parser(prog: str, command: Command, *, notebook: bool) -> argparse.ArgumentParser:
    """Return the parser of a command; parsed arguments have the `run` to call."""
    made = _Parser(prog=prog, description=command.summary, notebook=notebook)
    made.add_argument("--json", action="store_true", help="print JSON")
    command.arguments(made)
    made.set_defaults(run=command.run)
    return made


def _explain(prog: str, known: Installed, noun: str, words: list[str], *, notebook: bool) -> NoReturn:
    """Print a noun's commands, or all nouns; or refuse words that are no command, with the nearest one."""
    found = listed(known, notebook=notebook)
    prog = f"{prog} {noun}".rstrip()
    described = NOUNS.get(noun, "") if noun else "a shared, elastic GPU pool inside Jupyter."
    made = _Parser(
        prog=prog, usage=f"%(prog)s [-h] {'' if noun else '[--version] '}COMMAND ...", add_help=False,
        notebook=notebook, description=described[:1].upper() + described[1:], epilog=_lines(found, noun),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    choices, name = next_words(found, *filter(None, [noun])), " ".join([noun, *words[:1]]).strip()
    if name in known or not choices:
        place = "terminals: jupyter elastic" if notebook else "notebooks: %elastic"
        made.error(f"invalid choice: {name!r} is for {place} {name}")
    made.add_argument("--help", "-h", action="help", help=argparse.SUPPRESS)
    if not noun:
        made.add_argument("--version", action="version", version=__version__, help=argparse.SUPPRESS)
    if not words or words[0].startswith("-"):
        made.parse_args(words)
        made.print_help(sys.stdout if noun else sys.stderr)
        sys.exit(0 if noun else 2)
    verbs = {name.rpartition(" ")[2]: name for name in reversed(found)}
    near = _near(words[0], {**verbs, **old_words.OLD, **{word: word for word in choices}})
    made.error(f"invalid choice: {words[0]!r} (there are {', '.join(choices)}){near}")


def next_words(found: Iterable[str], *before: str) -> list[str]:
    """Return the words that may follow these words in one of these commands."""
    start = "".join(f"{word} " for word in before)
    words = (name.removeprefix(start).partition(" ")[0] for name in found if name.startswith(start))
    return list(dict.fromkeys(words))


def _lines(found: Mapping[str, Command], noun: str) -> str:
    """Return the lines of the help: a noun's commands, or the words that are commands and those that are nouns."""
    commands: dict[str, str] = {}
    groups: dict[str, str] = {}
    for word in next_words(found, *filter(None, [noun])):
        if command := found.get(f"{noun} {word}".strip()):
            commands[word] = command.summary
        else:
            groups[word] = NOUNS.get(word) or ", ".join(next_words(found, word))
    lines: list[str] = []
    for title, rows in (("commands:", commands), ("groups of commands, each lists its own:", groups)):
        lines += ["", title] if rows else []
        for word, summary in rows.items():
            lines += textwrap.wrap(f"  {word:<15}{summary}", COLUMNS, subsequent_indent=" " * 17)
    return "\n".join(lines[1:])


def _summarized(entries: list[EntryPoint]) -> Command | None:
    """Return the command for lists; None if it can't be loaded, which `load` reports when it is used."""
    try:
        found = load(entries)
    except BadRequest:
        return None
    if isinstance(found, Command):
        return found
    summary = re.split(r"[.;\n]", found.__doc__ or entries[0].name)[0]
    return Command(summary[:1].lower() + summary[1:], lambda *_: None, notebook=False)


class _Parser(argparse.ArgumentParser):
    """A parser that suggests a word for a mistyped one; in a notebook it raises BadRequest and never exits."""

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
            message += _near(match[1], re.findall(r"[\w-]+", match[2]))
        elif match := re.search(r"unrecognized arguments: (--[\w-]+)", message):
            message += _near(match[1], list(self._option_string_actions))
        if not self.notebook:
            super().error(message)
        raise BadRequest(f"{self.prog}: {message}")


def _near(word: str, choices: Mapping[str, object] | Iterable[str]) -> str:
    """Return `; did you mean ...?` with the nearest choice, or its value in a mapping; empty if none is near."""
    close = get_close_matches(word, list(choices), 1)
    return f"; did you mean {choices[close[0]] if isinstance(choices, Mapping) else close[0]}?" if close else ""


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
