"""The options of a cell, and the checks of options that contradict each other. Must not know how a line is parsed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from msgspec import field

from jupyter_elastic.kernel.option_values import (
    deadline_from,
    environment_from,
    labels_from,
)
from jupyter_elastic.types import BALANCE, LOGICAL_WORKERS, JobRequest
from jupyter_elastic.types.errors import BadRequest

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


def checked_options(given: argparse.Namespace, environ: Mapping[str, str], now: float) -> CellOptions:
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
    if given.balance not in {None, "none"} and given.logical is not None:
        raise BadRequest("--balance and --logical contradict each other: logical workers have equal shares")
    variables = {LOGICAL_WORKERS: given.logical, BALANCE: given.balance}
    fields = vars(given) | {
        "min_slots": sizes[0] if sizes else low,
        "max_slots": sizes[-1] if sizes else high,
        "min_servers": given.servers[0] if given.servers else 0,
        "max_servers": given.servers[1] if given.servers else 0,
        "capture": () if given.no_capture else given.capture and tuple(dict.fromkeys(given.capture)),
        "out": tuple(dict.fromkeys(given.out)),
        "on": labels_from(given.on),
        "preemptible": given.preemptible and not given.session,
        "session": given.session or "",
        "sized": bool(given.session and (given.gpus or sizes)),
        "env": environment_from(given.env, environ) | {name: str(v) for name, v in variables.items() if v is not None},
        "deadline_at": None if given.deadline is None else deadline_from(given.deadline, now),
    }
    of_line = ("gpus", "servers", "no_capture", "block", "logical", "balance", "deadline")
    return CellOptions(**{name: value for name, value in fields.items() if name not in of_line})


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
