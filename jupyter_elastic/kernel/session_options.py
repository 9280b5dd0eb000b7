"""Completes the options of a cell that names a session: without its own, the session's size and engine hold."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from jupyter_elastic.jobfiles import session_limits, sessions
from jupyter_elastic.jobfiles.sessions import IDLE_S, PIN_S, SessionFolder, SessionRequest
from jupyter_elastic.kernel.cell_options import CellOptions
from jupyter_elastic.types import JobInfo
from jupyter_elastic.types.errors import BadRequest


def fitted(options: CellOptions, unfinished: Callable[[], Iterable[JobInfo]] = tuple) -> CellOptions:
    """Return the options completed by the session; BadRequest if they differ from it, or it is lost.

    `unfinished` returns this user's jobs that have not ended: one may be the cell that is to make the session.
    """
    if not options.session:
        return options
    folder = SessionFolder(options.session)
    known = folder.read()
    if known is None or folder.over(known):
        makes = next((job.spec for job in unfinished() if job.spec.session == options.session), None)
        if makes is not None and not options.sized:
            options = replace(options, min_slots=makes.min_slots, max_slots=makes.max_slots)
        if makes is not None:
            options = replace(options, engine=options.engine or makes.engine)
        _check_ranks(options, options.max_slots)
        if problem := session_limits.too_many(folder):
            raise BadRequest(f"{problem}. Nothing was queued.")
        return options
    sizes = (options.min_slots, options.max_slots) if options.sized else known.range
    _check_ranks(options, known.size)
    fits = replace(options, min_slots=sizes[0], max_slots=sizes[1], engine=options.engine or known.engine)
    if folder.ended() is not None:
        if options.respawn:
            return fits
        raise BadRequest(f"{sessions.gone(folder)}. Nothing was queued.")
    if problem := sessions.differs(known, sizes, fits.engine, sys.executable):
        raise BadRequest(f"{problem}. Nothing was queued.")
    return replace(fits, begins=known.size if known.elastic else 0)


def _check_ranks(options: CellOptions, size: int) -> None:
    if options.ranks and options.ranks[-1] >= size:
        raise BadRequest(
            f"--rank {options.ranks[-1]}: the session {options.session!r} has the ranks 0 to {size - 1}. Nothing was "
            "queued."
        )


def existing(name: str) -> SessionFolder:
    """Return the folder of an existing session; BadRequest when there is none of this name, or it is lost."""
    folder = SessionFolder(name)
    known = folder.read() if sessions.NAME.fullmatch(name) else None
    if known is None or folder.over(known):
        names = ", ".join(one.name for one in sessions.listed()) or "none"
        raise BadRequest(
            f"there is no session {name!r}; there are: {names}. Begin one with `%%distribute --session {name} --gpus N`"
        )
    if folder.ended() is not None:
        raise BadRequest(sessions.gone(folder))
    return folder


def session_request(options: CellOptions, *, reloads: bool = False) -> SessionRequest | None:
    """Return the payload's part on the session; None for a cell without one. `reloads`: reload edited modules first."""
    if not options.session:
        return None
    return SessionRequest(
        name=options.session,
        respawn=options.respawn,
        idle_s=IDLE_S if options.idle_s is None else options.idle_s,
        pin_s=PIN_S if options.pin_s is None else options.pin_s,
        outlive=options.outlive,
        replaces=options.capture is not None,
        ranks=options.ranks,
        reloads=reloads,
    )
