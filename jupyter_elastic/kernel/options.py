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
from IPython.core.magic_arguments import MagicArgumentParser, argument, magic_arguments

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
_OF_NOTEBOOKS = {
    "capture": None, "out": None, "no_capture": True, "handle": None, "block": False, "session": None, "respawn": False,
    "outlive": False, "idle_s": None, "pin_s": None, "ranks": (), "hold_s": 0.0,
}  # fmt: skip
"""Options of cells that scripts don't have, and their values for scripts."""


@magic_arguments("%distribute")  # IPython puts another % before it
@argument(
    "--gpus",
    "-n",
    type=slot_range,
    metavar="N|MIN:MAX",
    help="Slots: exactly N, or as many as the pool can give between MIN and MAX. A slot is a GPU; on a pool without "
    "GPUs it is a CPU core.",
)
@argument(
    "--servers",
    type=servers_from,
    metavar="N|MIN:MAX",
    help="Parameter servers beside the workers, one slot each, for --engine tensorflow_ps.",
)
@argument("--sizes", type=sizes_from, default=(), metavar="N,N", help="Only these numbers of slots, such as 1,2,4.")
@argument("--name", default="", help="Name of the job in queue and panels.")
@argument(
    "--engine",
    default="",
    help="What starts the workers: horovod or torch (one process group), tensorflow_ps (parameter servers), process "
    "(independent), or a plug-in. Default: what fits the cell; its view says which, and why.",
)
@argument(
    "--in",
    dest="capture",
    action="extend",
    type=python_names,
    metavar="NAMES",
    help="Capture only these names (comma-separated or repeated) instead of those that the cell reads.",
)
@argument(
    "--out", action="extend", type=python_names, metavar="NAMES", help="Names whose values come back into the notebook."
)
@argument("--no-capture", action="store_true", help="Capture nothing from the notebook.")
@argument("--detach", "-a", "--noblock", action="store_true", help="Do not wait; the cell's value is the job's handle.")
@argument("--block", "-b", action="store_true", help="Wait for the job (the default).")
@argument("--handle", "-o", type=python_name, metavar="NAME", help="Put the job's handle into this name instead.")
@argument(
    "--deadline",
    metavar="TIME",
    help="Be done by then, for the policy `deadline`: 2h (from now), 18:00, 2026-12-24T18:00, or the end of a date. It "
    "needs --estimate, or a loop that reports how much there is to do.",
)
@argument(
    "--resumable",
    action="store_true",
    help="The cell saves checkpoints and begins with the last one, as scripts for torchrun do: a change of size or a "
    "worker's death ends all workers and starts them anew. For cells without an elastic loop.",
)
@argument(
    "--interactive",
    action="store_true",
    help="You wait for it: elastic jobs shrink at once to make room, and no policy pauses it. It runs for minutes only "
    "(10, unless the pool's administrator says otherwise), and one at a time.",
)
@argument("--no-preempt", action="store_true", help="Once it runs, no policy may take all its slots to pause it.")
@argument(
    "--max-time", type=seconds_from, metavar="TIME", help="Stop the job after this running time: 90s, 10m, 1h30m."
)
@argument(
    "--estimate",
    type=seconds_from,
    metavar="TIME",
    help="Your guess of the running time; policies may back-fill by it.",
)
@argument(
    "--env",
    action="append",
    default=[],
    metavar="K=V",
    help="Environment variable of the workers; K alone takes the kernel's, 'LAB_*' all that begin so.",
)
@argument(
    "--on", action="append", default=[], metavar="K=V",
    help="Only on hosts with this label: gpu=A100, rack=3. A job's hosts have the same kind of GPU unless gpu=any.",
)  # fmt: skip
@argument(
    "--with", dest="folder", default="", metavar="DIR",
    help="Run in this folder, on other hosts in a copy of it (at most 100 MiB): its modules and files are there.",
)  # fmt: skip
@argument("--priority", type=int, default=0, help="-1000 to 1000, for policies that look at it.")
@argument("--seed", type=int, metavar="N", help="Seed all random numbers: rank r gets N + r. Default: each its own.")
@argument(
    "--logical",
    type=int,
    metavar="N",
    help="For training.State (PyTorch): compute as N workers would, bit for bit, however many there are.",
)
@argument(
    "--balance",
    choices=BALANCES,
    metavar="HOW",
    help="For training.batches where workers are not equally fast: auto gives each a share of the batch by its "
    "measured speed. Default: none, equal shares.",
)
@argument(
    "--session",
    type=session_name,
    metavar="NAME",
    help="Run in the session's workers, which keep their variables from cell to cell; the first cell that names it "
    "makes them. Slots are held only while a cell runs.",
)
@argument(
    "--rank",
    dest="ranks",
    type=ranks_from,
    default=(),
    metavar="N,N",
    help="Run the cell on these ranks of the session only; the others keep what they have.",
)
@argument("--respawn", action="store_true", help="Make the session's workers anew if they are gone.")
@argument("--outlive", action="store_true", help="A new session's workers stay when this kernel ends.")
@argument(
    "--idle", dest="idle_s", type=seconds_from, metavar="TIME",
    help="A new session's workers end when no cell comes for so long. Default: 1h.",
)  # fmt: skip
@argument(
    "--pin", dest="pin_s", type=pin_seconds, metavar="TIME",
    help="A new session keeps GPUs so long that its memory can't leave after a cell; 0: it ends then. Default: 10m.",
)  # fmt: skip
@argument(
    "--hold", dest="hold_s", type=hold_seconds, default=0.0, metavar="TIME",
    help="Keep the session's slots so long after the cell, unless somebody waits for slots: 30s, at most 10m.",
)  # fmt: skip
@argument("--dry-run", action="store_true", help="Show what would be shipped and asked for; queue nothing.")
def distribute_line(line: str) -> None:
    """Run this cell on leased slots of the shared pool.

    The cell waits like any other and shows the job live; interrupting the kernel cancels the job. In the cell `rank`,
    `world_size`, `local_rank` and `device` are defined. Names that the cell reads from the notebook are captured and
    listed with their sizes before anything is queued.

        %%distribute --gpus 1:4 --name digits --out history
    """
    del line


def long_options() -> list[str]:
    """Return the long forms of the options, for completion."""
    return sorted(word for word in distribute_line.parser._option_string_actions if word.startswith("--"))


def parse(line: str, environ: Mapping[str, str] | None = None, now: float | None = None) -> CellOptions:
    """Parse the options of a magic line, written at `now` (None: just now); BadRequest says what to change."""
    given = _parsed(distribute_line.parser, line, "`%%distribute --help` lists the options")
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
    return given.file, tuple(behind), checked_options(given, environ or {}, time.time())


def _script_parser() -> argparse.ArgumentParser:
    """Return the parser of a cell's options without those of notebooks."""
    parser = argparse.ArgumentParser(
        prog="jupyter elastic run",
        usage="jupyter elastic run FILE [OPTIONS] [-- ARGUMENTS]",
        description="Run a Python script on leased slots of the shared pool, as torchrun would: each worker has a rank "
        "and its own device. What rank 0 prints is shown; Ctrl-C cancels the job.",
        epilog="What stands behind -- is the script's own (sys.argv). The exit code is 0 when the job was completed.",
    )
    parser.add_argument("file", metavar="FILE", help="The script.")
    for action in distribute_line.parser._actions:
        if action.dest not in _OF_NOTEBOOKS:
            parser._add_action(action)
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
