"""Implements the commands about sessions: list them, end one. The daemon only reports which ones retain slots.

Commands that bring values or cells into a session belong to a notebook: `%elastic` passes them to the magics.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

import psutil
from msgspec import Struct
from rich.console import Console
from rich.filesize import decimal as human
from rich.markup import escape

from jupyter_elastic.cli.commands import Command, Connect, print_json, table
from jupyter_elastic.jobfiles import sessions
from jupyter_elastic.jobfiles.sessions import Session, SessionFolder, SessionMember
from jupyter_elastic.types import Retention
from jupyter_elastic.types.errors import BadRequest, ElasticError, NotFound
from jupyter_elastic.types.texts import visible

_NOTHING = Retention(count=0, until=0.0)


class SessionRow(Struct, frozen=True, kw_only=True):
    """A session in the output of `--json`."""

    name: str
    workers: int
    range: tuple[int, int]
    living: int
    engine: str
    memory: int
    """Bytes of its workers in memory; shared memory counts for each."""
    idle_s: float | None
    """Seconds since its last cell; None while one runs."""
    ended: str
    """Reason why its workers are gone; empty while they live."""
    held: int
    """Slots that are retained for its next cell, unless another job needs slots."""
    held_s: float
    """Remaining seconds of this retention."""
    pinned: tuple[str, ...]
    """Slots that it retains between cells because its memory can't leave their devices."""
    pinned_why: str
    pinned_s: float
    """Maximum remaining seconds of this retention."""

    @property
    def count(self) -> str:
        """The number of workers for people: `2`, or `2 (1 to 4)`."""
        low, high = self.range
        return str(self.workers) if low == high else f"{self.workers} ({low} to {high})"


def _row(folder: SessionFolder, session: Session, now: float, kept: Retention) -> SessionRow:
    left_s = max(kept.until - now, 0.0)
    members = folder.members(session)
    idle = [member.idle_since for member in members]
    ended = folder.ended()
    why = "" if len(members) == session.size else "a worker is gone"
    return SessionRow(
        name=session.name,
        workers=session.size,
        range=session.range,
        living=len(members),
        engine=session.engine,
        memory=sum(map(_memory, members)),
        idle_s=now - max(idle) if idle and all(idle) else None,
        ended=ended.why if ended is not None else why,
        held=0 if kept.exclusive else kept.count,
        held_s=0.0 if kept.exclusive else left_s,
        pinned=kept.slots,
        pinned_why=kept.reason,
        pinned_s=left_s if kept.exclusive else 0.0,
    )


def _kept(connect: Connect) -> dict[str, Retention]:
    """Return what sessions keep; nothing if no daemon answers."""
    with contextlib.suppress(ElasticError):
        jobs = connect().jobs(all=True)
        return {info.spec.session: info.retention for info in jobs if info.retention and not info.private}
    return {}


def _memory(member: SessionMember) -> int:
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(member.pid).memory_info().rss)
    return 0


def _sessions(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    found = [
        (folder, session)
        for folder in sessions.listed()
        if (session := folder.read()) is not None and not folder.over(session)
    ]
    retained = _kept(connect) if found else {}
    rows = [_row(folder, session, time.time(), retained.get(folder.name, _NOTHING)) for folder, session in found]
    if given.json:
        print_json(rows)
        return
    if not rows:
        console.print("no sessions; `%%distribute --session NAME` begins one")
        return
    shown = table("NAME", "WORKERS", "ENGINE", "MEMORY", "STATE")
    for row in rows:
        kept = f"{row.held} slots kept for {row.held_s:.0f} s more" if row.held_s else "no slots held"
        if row.pinned:
            kept = f"keeps {', '.join(row.pinned)} for {row.pinned_s:.0f} s more at most: {row.pinned_why}"
        state = "a cell runs" if row.idle_s is None else f"idle for {row.idle_s:.0f} s, {kept}"
        state = escape(visible(f"lost: {row.ended}" if row.ended else state))
        shown.add_row(row.name, row.count, row.engine, human(row.memory), state)
    console.print(shown)


def _end(given: argparse.Namespace, connect: Connect, console: Console) -> None:  # noqa: ARG001
    folder = SessionFolder(given.name)
    session = folder.read() if sessions.NAME.fullmatch(given.name) else None
    if session is None:
        names = ", ".join(one.name for one in sessions.listed()) or "none"
        raise NotFound(f"there is no session {given.name!r}; there are: {names}")
    left = sessions.end_left(folder, session)
    folder.remove()
    if given.json:
        print_json({"name": given.name, "ended": left})
    else:
        console.print(f"the session {given.name} is ended, with {left} workers")


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the session's name")


def _of_notebook(*_: Any) -> None:
    """Refuse a command outside the magic `%elastic`, which handles it itself."""
    raise BadRequest("write it in a cell of a notebook, behind %elastic")


def _names(parser: argparse.ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("names", nargs="+", metavar="VARIABLE", help="its name")
    parser.add_argument("--rank", dest="ranks", default="", metavar="N,N", help="these ranks only")


def _switch(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", metavar="NAME", default="", help="the session's name")
    which.add_argument("--off", action="store_true", help="cells run in the notebook again")


LIST = Command("list sessions: workers that keep their variables", _sessions)
END = Command("end a session; its variables are lost", _end, _name)
PULL = Command("bring a session's variables into this notebook, by rank", _of_notebook, _names, terminal=False)
PUSH = Command("send this notebook's variables to a session", _of_notebook, _names, terminal=False)
AUTO = Command("run all following cells in a session, except those with %", _of_notebook, _switch, terminal=False)
