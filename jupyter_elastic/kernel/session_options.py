"""What a cell that names a session means by it: a session's size and engine hold for the cells that name none."""

from __future__ import annotations

import sys

from msgspec.structs import replace

from jupyter_elastic.jobfiles import sessions
from jupyter_elastic.jobfiles.sessions import IDLE_S, SessionFolder, SessionRequest
from jupyter_elastic.kernel.options import Options
from jupyter_elastic.types.errors import BadRequest


def fitted(options: Options) -> Options:
    """The options with what the session has already; BadRequest when it has something else, or is lost."""
    if not options.session:
        return options
    folder = SessionFolder(options.session)
    known = folder.read()
    if known is None or folder.over(known):
        return options
    size = options.max_slots if options.sized else known.size
    fits = replace(options, min_slots=size, max_slots=size, engine=options.engine or known.engine)
    if folder.ended() is not None:
        if options.respawn:
            return fits
        raise BadRequest(f"{sessions.gone(folder)}. Nothing was queued.")
    if problem := sessions.differs(known, size, fits.engine, sys.executable):
        raise BadRequest(f"{problem}. Nothing was queued.")
    return fits


def session_request(options: Options) -> SessionRequest | None:
    """What the payload says of the session; None for a cell without one."""
    if not options.session:
        return None
    return SessionRequest(
        name=options.session,
        respawn=options.respawn,
        idle_s=IDLE_S if options.idle_s is None else options.idle_s,
        outlive=options.outlive,
        replaces=options.capture is not None,
    )
