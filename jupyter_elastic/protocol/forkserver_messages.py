"""Defines the messages between a forkserver and its clients. Pure."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from jupyter_elastic.protocol.framing import Frames

Process: TypeAlias = tuple[int, float]
"""Pid and start time."""
MAX_REQUEST, MAX_ANSWER = 4096, 64 * 1024
"""Maximum bytes of a message."""


class Fork(Struct, frozen=True, tag=True):
    """Fork a process that gets the file descriptor which comes with this message."""

    kept_for: Process | None = None
    """The process (a kernel, the agent) for which the forkserver is kept."""


class Keep(Struct, frozen=True, tag=True):
    """Keep the forkserver for this process, which may send requests later."""

    kept_for: Process


class Clear(Struct, frozen=True, tag=True):
    """Answer with `Cleared` as soon as no process lives that was started by processes which are dead by now."""


Request: TypeAlias = Fork | Keep | Clear


class Forked(Struct, frozen=True, tag=True):
    """The process of a `Fork`; answers to `Fork` come in the order of the requests."""

    pid: int
    start_time: float


class ForkRefused(Struct, frozen=True, tag="Refused"):
    """A `Fork` that failed."""

    problem: str


class Exited(Struct, frozen=True, tag=True):
    """A process of this client has ended."""

    pid: int
    code: int
    """Negative for a signal."""
    cleared: bool
    """True if no process that it had started lives either; else `Cleared` follows later."""


class Cleared(Struct, frozen=True, tag=True):
    """No process lives that this process (of an `Exited`), or any dead one (0: the answer to `Clear`), had started."""

    pid: int = 0


Answer: TypeAlias = Forked | ForkRefused | Exited | Cleared


REQUESTS: Frames[Request] = Frames(Request, "requests to a forkserver", MAX_REQUEST)
ANSWERS: Frames[Answer] = Frames(Answer, "answers of a forkserver", MAX_ANSWER)
