"""Runs `jupyter elastic ...` in a terminal, and `%elastic ...` in a notebook: the same commands, the same tables.

Runs the command, turns errors into a message and an exit code. Knows no command by name.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from jupyter_elastic.cli import commands
from jupyter_elastic.cli.commands import Connect
from jupyter_elastic.cli.notebook_console import NotebookConsole, plain
from jupyter_elastic.client import Client, services
from jupyter_elastic.types.errors import BadRequest, ElasticError
from jupyter_elastic.types.texts import visible


def main(argv: Sequence[str] | None = None) -> int:
    """Run the terminal's command; return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    clients = contextlib.ExitStack()

    def connect() -> Client:
        services.ensure()
        return clients.enter_context(Client())

    try:
        given = commands.parsed("jupyter elastic", arguments, notebook=False)
        return int(given.run(given, connect, console) or 0)
    except ElasticError as problem:
        errors.print(f"[red]error:[/red] {escape(visible(str(problem), lines=True))}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        clients.close()


def notebook(line: str, connect: Connect, *, page: bool = True) -> None:
    """Run `%elastic line`, for a page or a terminal; BadRequest for an invalid line."""
    if (given := parsed(line or "pool status")) is not None:
        given.run(given, connect, (NotebookConsole if page else Console)(highlight=False))


def parsed(line: str) -> argparse.Namespace | None:
    """Parse the arguments of `%elastic line`; None after printing requested help. BadRequest for an invalid line."""
    try:
        return commands.parsed("%elastic", shlex.split(line), notebook=True)
    except ValueError as problem:
        raise BadRequest(f"%elastic: {problem}") from None
    except SystemExit:
        return None


def text(arguments: list[str], connect: Connect) -> str:
    """Return the output of `%elastic` with these arguments, without colours."""
    given = commands.parsed("%elastic", arguments, notebook=True)
    return plain(lambda console: given.run(given, connect, console))
