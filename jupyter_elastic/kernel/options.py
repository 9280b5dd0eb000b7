"""Parses the options of `%%distribute` and `jupyter elastic run`, and reports errors in them.

Knows IPython's magic_arguments; decides nothing about jobs.
"""

from __future__ import annotations

import argparse
import json
import keyword
import re
import shlex
import time
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser, argument, magic_arguments
from msgspec import field

from jupyter_elastic.client.job import slot_range
from jupyter_elastic.jobfiles.sessions import NAME
from jupyter_elastic.types import BALANCE, BALANCES, LOGICAL_WORKERS, MAX_HOLD_S, JobRequest
from jupyter_elastic.types.errors import BadRequest

_TIME = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+(?:\.\d+)?)s?)?")
MAX_SERVERS = 100_000
MAX_SIZES = 1_000
"""Maximum number of sizes that the daemon accepts."""
_POLICY_USAGE = "write %%policy NAME [--shadow | --activate] [--opt K=V] above `def plan(view)`"
_OF_NOTEBOOKS = {
    "capture": None, "out": None, "no_capture": True, "handle": None, "block": False, "session": None, "respawn": False,
    "outlive": False, "idle_s": None, "pin_s": None, "ranks": (), "hold_s": 0.0,
}  # fmt: skip
"""Options of cells that scripts don't have, and their values for scripts."""
MAX_SEED = 2**31 - 1
"""Maximum seed: NumPy takes 32 bits, and the rank is added."""


class CellOptions(JobRequest, frozen=True, kw_only=True):
    """The checked options of a `%%distribute` line."""

    min_slots: int = 1
    max_slots: int = 1
    name: str = ""
    engine: str = ""
    """Empty: the best installed engine."""
    capture: tuple[str, ...] | None = None
    """Names to capture; None: those that the cell reads."""
    out: tuple[str, ...] = ()
    detach: bool = False
    handle: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    resumable: bool = False
    """True if the cell loads its own checkpoint: a change of size ends all workers and starts them anew."""
    folder: str = ""
    """Folder in which workers run, on other hosts in a copy; empty: the notebook's, which other hosts have."""
    dry_run: bool = False
    seed: int | None = None
    session: str = ""
    """The session whose workers run the cell; empty: workers of its own."""
    respawn: bool = False
    outlive: bool = False
    idle_s: float | None = None
    pin_s: float | None = None
    ranks: tuple[int, ...] = ()
    """Ranks of the session that run the cell; empty: all."""
    sized: bool = False
    """True if the line gives a size beside the session."""


def _name(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ArgumentTypeError(f"{name}: that is no Python name")
    return name


def _session(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ArgumentTypeError(f"{name}: a session's name has up to 32 letters, digits, `_`, `-` and `.`")
    return name


def _names(text: str) -> list[str]:
    return [_name(name.strip()) for name in text.split(",") if name.strip()]


def seconds_from(text: str) -> float:
    """Parse `90s`, `1h30m`, `1:30:00` as seconds; ArgumentTypeError says what is wrong."""
    match = _TIME.fullmatch(text.replace(" ", ""))
    seconds = 0.0
    if match is not None:
        days, hours, minutes, rest = match.groups()
        seconds = 86400 * int(days or 0) + 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(rest or 0)
    elif re.fullmatch(r"\d+(:\d{2}){1,2}", text):  # 1:30 or 1:30:00, as Slurm has it
        for part in text.split(":"):
            seconds = 60 * seconds + int(part)
    if seconds <= 0:
        raise ArgumentTypeError(f"{text}: write a time such as 90s, 10m, 1h30m or 1:30:00")
    return seconds


def _pin(text: str) -> float:
    return 0.0 if text == "0" else seconds_from(text)


def _hold(text: str) -> float:
    if (seconds := seconds_from(text)) > MAX_HOLD_S:
        raise ArgumentTypeError(f"{text}: slots in which nothing runs are kept for 10m at most")
    return seconds


def labels_from(words: Sequence[str]) -> dict[str, str]:
    """Parse `["gpu=A100", "rack=3"]` as a dictionary; BadRequest says what is wrong."""
    found = {}
    for word in ",".join(words).split(",") if words else ():
        name, equals, value = (part.strip() for part in word.partition("="))
        if not (equals and name and value):
            raise BadRequest(f"{word!r} is no label: write a name and a value, as in gpu=A100")
        found[name] = value
    return found


def ranks_from(text: str) -> tuple[int, ...]:
    """Parse `2,0` as (0, 2); BadRequest says what is wrong."""
    ranks = [rank.strip() for rank in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,5}", rank) for rank in ranks):
        raise BadRequest(f"--rank {text}: write ranks such as 0 or 0,2")
    return tuple(sorted({int(rank) for rank in ranks}))


def sizes_from(text: str) -> tuple[int, ...]:
    """Parse `4,1,2` as (1, 2, 4); BadRequest says what is wrong."""
    sizes = [size.strip() for size in text.split(",")]
    if not all(size.isdecimal() and 1 <= int(size) <= 100_000 for size in sizes) or len(sizes) > MAX_SIZES:
        raise BadRequest(f"--sizes {text}: write numbers such as 1,2,4")
    return tuple(sorted({int(size) for size in sizes}))


def servers_from(text: str) -> tuple[int, int]:
    """Parse `1:2` as (1, 2); BadRequest says what is wrong."""
    match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= MAX_SERVERS:
        raise BadRequest(f"--servers {text}: write a number from 1 on (--servers 1) or a range (--servers 1:2)")
    return low, high


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
    type=_names,
    metavar="NAMES",
    help="Capture only these names (comma-separated or repeated) instead of those that the cell reads.",
)
@argument(
    "--out", action="extend", type=_names, metavar="NAMES", help="Names whose values come back into the notebook."
)
@argument("--no-capture", action="store_true", help="Capture nothing from the notebook.")
@argument("--detach", "-a", "--noblock", action="store_true", help="Do not wait; the cell's value is the job's handle.")
@argument("--block", "-b", action="store_true", help="Wait for the job (the default).")
@argument("--handle", "-o", type=_name, metavar="NAME", help="Put the job's handle into this name instead.")
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
    type=_session,
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
    "--pin", dest="pin_s", type=_pin, metavar="TIME",
    help="A new session keeps GPUs so long that its memory can't leave after a cell; 0: it ends then. Default: 10m.",
)  # fmt: skip
@argument(
    "--hold", dest="hold_s", type=_hold, default=0.0, metavar="TIME",
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
    return _checked(given, environ or {}, time.time() if now is None else now)


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
    return given.file, tuple(behind), _checked(given, environ or {}, time.time())


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


def _checked(given: argparse.Namespace, environ: Mapping[str, str], now: float) -> CellOptions:
    """Check the parsed options together; BadRequest says what to change."""
    sizes = given.sizes
    low, high = given.gpus or ((sizes[0], sizes[-1]) if sizes else (1, 1))
    for size in sizes:
        if not low <= size <= high:
            raise BadRequest(
                f"--sizes {','.join(map(str, sizes))}: {size} lies outside --gpus {low}:{high}; change one of them"
            )
    if given.no_capture and given.capture:
        raise BadRequest("--in and --no-capture contradict each other: give one of them")
    if given.interactive and given.detach:
        raise BadRequest(
            "--interactive and --detach contradict each other: a job is interactive because somebody waits for it; "
            "give one of them"
        )
    _check_session(given)
    if given.detach and given.block:
        raise BadRequest("--detach and --block contradict each other: give one of them")
    if len(given.name) > 200:
        raise BadRequest("--name: at most 200 characters")
    if not -1000 <= given.priority <= 1000:
        raise BadRequest(f"--priority {given.priority}: give a number from -1000 to 1000")
    if given.seed is not None and not 0 <= given.seed <= MAX_SEED:
        raise BadRequest(f"--seed {given.seed}: give a number from 0 to {MAX_SEED}")
    if given.logical is not None and given.logical < (most := sizes[-1] if sizes else high):
        raise BadRequest(
            f"--logical {given.logical}: a job of up to {most} workers needs at least {most} logical ones; ask for "
            "more, or for fewer --gpus"
        )
    logical = {} if given.logical is None else {LOGICAL_WORKERS: str(given.logical)}
    if given.balance not in {None, "none"} and given.logical is not None:
        raise BadRequest("--balance and --logical contradict each other: logical workers have equal shares")
    balance = {} if given.balance is None else {BALANCE: given.balance}
    capture = () if given.no_capture else given.capture
    checked = {
        "min_slots": sizes[0] if sizes else low,
        "max_slots": sizes[-1] if sizes else high,
        "min_servers": given.servers[0] if given.servers else 0,
        "max_servers": given.servers[1] if given.servers else 0,
        "capture": capture if capture is None else tuple(dict.fromkeys(capture)),
        "out": tuple(dict.fromkeys(given.out or ())),
        "max_time_s": given.max_time,
        "on": labels_from(given.on),
        "estimate_s": given.estimate,
        "preemptible": not (given.no_preempt or given.session),
        "session": given.session or "",
        "sized": bool(given.session and (given.gpus or sizes)),
        "env": _environment(given.env, environ) | logical | balance,
        "deadline_at": None if given.deadline is None else deadline_from(given.deadline, now),
    }
    plain = {name: value for name, value in vars(given).items() if name in CellOptions.__struct_fields__}
    return CellOptions(**plain | checked)


def _check_session(given: argparse.Namespace) -> None:
    if not given.session:
        about = {"--rank": given.ranks, "--respawn": given.respawn, "--outlive": given.outlive, "--idle": given.idle_s,
                 "--hold": given.hold_s, "--pin": given.pin_s is not None}  # fmt: skip
        for option, value in about.items():
            if value:
                raise BadRequest(f"{option} is about a session: name it with --session, or leave {option} out")
    elif given.sizes:
        raise BadRequest("--session and --sizes contradict each other: write --gpus N, or --gpus MIN:MAX")
    elif given.folder:
        raise BadRequest("--session and --with contradict each other: a session's workers stay on this machine")
    elif given.resumable or given.servers:
        raise BadRequest("--session and --resumable or --servers contradict each other: its workers are kept")


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


def option_values(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse `K=V` with JSON values if possible, else text."""
    options: dict[str, Any] = {}
    for given in arguments:
        name, equals, value = given.partition("=")
        if not name or not equals:
            raise BadRequest(f"--opt {given}: write NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def deadline_from(text: str, now: float) -> float:
    """Parse a deadline: a duration from now, the next such time of day here, or a date (its end) or date and time."""
    here = datetime.fromtimestamp(now).astimezone()
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
            hour, minute, *second = map(int, text.split(":"))
            due = here.replace(hour=hour, minute=minute, second=second[0] if second else 0, microsecond=0)
            due += timedelta(days=due <= here)
        elif re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            due = (datetime.fromisoformat(text) + timedelta(days=1)).astimezone()
        elif re.match(r"\d{4}-\d{2}-\d{2}[T ]", text):
            due = datetime.fromisoformat(text).astimezone()
        else:
            return now + seconds_from(text)
    except (ValueError, OverflowError, ArgumentTypeError):
        raise BadRequest(f"--deadline {text}: write a time such as 2h, 18:00 or 2026-12-24T18:00") from None
    if due <= here:
        raise BadRequest(f"--deadline {text} lies in the past; it is {here:%Y-%m-%d %H:%M} here")
    return due.timestamp()


def _environment(given: list[str], environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if "*" in name and not equals:
            named = {one: environ[one] for one in environ if fnmatchcase(one, name)}
            if not named:
                raise BadRequest(f"--env {name}: no variable like {name} is set here")
            found |= named
            continue
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise BadRequest(f"--env {word}: write NAME=VALUE")
        if not equals and name not in environ:
            raise BadRequest(f"--env {name}: no such variable is set here; write {name}=VALUE")
        found[name] = value if equals else environ[name]
    return found
