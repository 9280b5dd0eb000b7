"""Parses the options of `%%distribute` and `jupyter elastic run`, and reports errors in them.

Knows IPython's magic_arguments; decides nothing about jobs.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from jupyter_elastic.client.job import slot_range
from jupyter_elastic.kernel.cell_options import CellOptions, checked_options
from jupyter_elastic.kernel.option_values import (
    hold_seconds,
    option_values,
    pin_seconds,
    python_name,
    python_names,
    ranks_from,
    seconds_from,
    servers_from,
    session_name,
    sizes_from,
)
from jupyter_elastic.types import BALANCES
from jupyter_elastic.types.errors import BadRequest

_POLICY_USAGE = "write %%policy NAME [--shadow | --activate] [--opt K=V] above `def plan(view)`"
COLUMNS = 80
_DESCRIPTION = """\
Run this cell on leased slots of the shared pool.

The cell waits like any other and shows the job live; interrupting the kernel
cancels the job. In the cell `rank`, `world_size`, `local_rank` and `device`
are defined. Names that the cell reads from the notebook are captured and listed
with their sizes before anything is queued.

    %%distribute --gpus 1:4 --name digits --out history"""
_OF_NOTEBOOKS = {
    "capture": None, "out": (), "no_capture": True, "handle": None, "block": False, "session": None, "respawn": False,
    "outlive": False, "idle_s": None, "pin_s": None, "ranks": (), "hold_s": 0.0,
}  # fmt: skip
"""Options of cells that scripts don't have, and their values for scripts."""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A formatter for terminals of 80 columns: one line an option, whatever the width of today's terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=COLUMNS)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        value = "" if action.nargs == 0 else f" {self._format_args(action, action.dest.upper())}"
        return ", ".join(sorted(action.option_strings, key=len)[:2]) + value if action.option_strings else value.strip()


def _parser() -> MagicArgumentParser:
    """Return the parser of a `%%distribute` line. Its help has the daily options first, and one line for each."""
    parser = MagicArgumentParser(
        prog="%%distribute", usage="%%%%distribute [--gpus N|MIN:MAX] [OPTIONS]", description=_DESCRIPTION,
        formatter_class=_HelpFormatter,
        epilog="TIME is 90s, 10m, 1h30m or 1:30:00. docs/cells.md says more of each option.",
    )  # fmt: skip
    add = parser.add_argument_group("Every day").add_argument
    add("--gpus", "-n", type=slot_range, metavar="N|MIN:MAX", help="slots: GPUs, or CPU cores without GPUs (1)")
    add("--name", default="", help="name of the job in queue and panels (the cell's number)")
    add("--in", dest="capture", action="extend", type=python_names, metavar="NAMES",
        help="send these names only (those that the cell reads)")  # fmt: skip
    add("--out", action="extend", type=python_names, default=[], metavar="NAMES",
        help="names whose values come back into the notebook")  # fmt: skip
    add("--detach", "-a", "--noblock", action="store_true", help="do not wait; the cell's value is the job")
    add("--session", type=session_name, metavar="NAME",
        help="run in workers that keep their variables, or make them")  # fmt: skip
    add("--engine", default="", help="what starts the workers, as horovod, torch (what fits)")

    add = parser.add_argument_group("Which slots").add_argument
    add("--sizes", type=sizes_from, default=(), metavar="N,N", help="only these numbers of slots: 1,2,4")
    add("--servers", type=servers_from, metavar="N|MIN:MAX", help="parameter servers, for --engine tensorflow_ps")
    add("--on", action="append", default=[], metavar="K=V", help="only hosts with this label: gpu=A100, rack=3")

    add = parser.add_argument_group("When, and how long").add_argument
    add("--max-time", dest="max_time_s", type=seconds_from, metavar="TIME", help="stop the job after this running time")
    add("--estimate", dest="estimate_s", type=seconds_from, metavar="TIME",
        help="your guess of the running time, for back-filling")  # fmt: skip
    add("--deadline", metavar="TIME", help="be done by then: 2h (from now), 18:00, 2026-12-24")
    add("--interactive", action="store_true", help="you wait for it: it goes first, for minutes only (10)")
    add("--priority", type=int, default=0, metavar="N", help="-1000 to 1000, for policies that look at it (0)")
    add("--no-preempt", dest="preemptible", action="store_false", help="once it runs, no policy may pause it")
    add("--resumable", action="store_true", help="the cell loads its own checkpoint after a restart")

    add = parser.add_argument_group("What the workers get").add_argument
    add("--no-capture", action="store_true", help="send no names of the notebook")
    add("--env", action="append", default=[], metavar="K=V", help="a variable of theirs; K or 'K*': the kernel's")
    add("--with", dest="folder", default="", metavar="DIR", help="run in this folder, at most 100 MiB on other hosts")
    add("--seed", type=int, metavar="N", help="seed all random numbers: rank r gets N + r (none)")
    add("--logical", type=int, metavar="N", help="compute as N workers would, bit for bit (PyTorch)")
    add("--balance", choices=BALANCES, metavar="HOW", help="auto: faster workers get more of a batch (none)")

    add = parser.add_argument_group("Of a session").add_argument
    add("--rank", dest="ranks", type=ranks_from, default=(), metavar="N,N", help="run on these ranks only (all)")
    add("--respawn", action="store_true", help="make the workers anew if they are gone")
    add("--outlive", action="store_true", help="new workers stay when this kernel ends")
    add(
        "--idle",
        dest="idle_s",
        type=seconds_from,
        metavar="TIME",
        help="end new workers after no cell for so long (1h)",
    )
    add("--hold", dest="hold_s", type=hold_seconds, default=0.0, metavar="TIME",
        help="keep idle slots after the cell, at most 10m (0s)")  # fmt: skip
    add("--pin", dest="pin_s", type=pin_seconds, metavar="TIME", help="keep GPUs that memory can't leave; 0: end (10m)")

    add = parser.add_argument_group("In the notebook").add_argument
    add("--handle", "-o", type=python_name, metavar="NAME", help="put the job into this name")
    add("--block", "-b", action="store_true", help="wait for the job (so it is without --detach)")
    add("--dry-run", action="store_true", help="show what would be sent and asked for; queue nothing")
    return parser


PARSER = _parser()


def long_options() -> list[str]:
    """Return the long forms of the options, for completion."""
    return sorted(word for word in PARSER._option_string_actions if word.startswith("--"))


def parse(line: str, environ: Mapping[str, str] | None = None, now: float | None = None) -> CellOptions:
    """Parse the options of a magic line, written at `now` (None: just now); BadRequest says what to change."""
    given = _parsed(PARSER, line, "`%%distribute --help` lists the options")
    return checked_options(given, environ or {}, time.time() if now is None else now)


def script_line(
    argv: Sequence[str], environ: Mapping[str, str] | None = None
) -> tuple[str, tuple[str, ...], CellOptions]:
    """Parse script, arguments, and options of `jupyter elastic run`; exit with 2 if that fails."""
    own = list(argv)
    behind: list[str] = []
    if "--" in own:
        cut = own.index("--")
        own, behind = own[:cut], own[cut + 1 :]
    parser = _script_parser()
    given, unknown = parser.parse_known_args(own)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}; what the script is to get goes behind --")
    file = vars(given).pop("file")
    return file, tuple(behind), checked_options(given, environ or {}, time.time())


def _script_parser() -> argparse.ArgumentParser:
    """Return the parser of a cell's options without those of notebooks."""
    parser = argparse.ArgumentParser(
        prog="jupyter elastic run",
        usage="jupyter elastic run FILE [OPTIONS] [-- ARGUMENTS]",
        description="Run a Python script on leased slots of the shared pool, as torchrun would:\neach worker has a "
        "rank and its own device. What rank 0 prints is shown; Ctrl-C\ncancels the job.",
        formatter_class=_HelpFormatter,
        epilog="What stands behind -- is the script's own (sys.argv).\nThe exit code is 0 when the job was completed.",
    )
    parser.add_argument("file", metavar="FILE", help="The script.")
    for group in PARSER._action_groups:
        titled = parser.add_argument_group(group.title)
        for action in group._group_actions:
            if action.dest not in _OF_NOTEBOOKS:
                titled._add_action(action)
    parser.set_defaults(**_OF_NOTEBOOKS)
    return parser


def _parsed(parser: MagicArgumentParser, line: str, advice: str) -> argparse.Namespace:
    """Parse the arguments of a magic's line; BadRequest ends with `advice`."""
    try:
        given: argparse.Namespace = parser.parse_args(shlex.split(line))
    except (UsageError, ValueError) as problem:  # IPython would only print it, so that *Run All* would go on
        close = get_close_matches(next((w for w in line.split() if w in str(problem)), ""), long_options(), 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise BadRequest(f"{problem}; {hint}{advice}") from None
    return given


def policy_line(line: str) -> tuple[str, bool, dict[str, Any]]:
    """Parse name, whether to activate, and options of a `%%policy` line; BadRequest says what to change."""
    parser = MagicArgumentParser()
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--shadow", action="store_true")
    parser.add_argument("--activate", action="store_true")
    parser.add_argument("--opt", action="append", default=[])
    given = _parsed(parser, line, _POLICY_USAGE)
    if not given.name.isidentifier():
        raise BadRequest(_POLICY_USAGE)
    if given.shadow and given.activate:
        raise BadRequest("--shadow and --activate contradict each other: give one of them")
    return given.name, given.activate, option_values(given.opt)
