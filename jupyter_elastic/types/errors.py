"""Public exceptions. Each message tells what went wrong and what to do next. Knows nothing of the rest."""

from __future__ import annotations


class ElasticError(Exception):
    """Base of all errors of this package; `code` is stable and travels over the wire, the message is for people."""

    code = "error"
    titled = True
    """True if a notebook shows the error's name before its message."""

    def _render_traceback_(self, *_arguments: object, **_options: object) -> list[str]:
        """Return the lines that IPython shows: the message without the traceback of this package."""
        return f"{type(self).__name__}: {self}".splitlines() if self.titled else str(self).splitlines()


class BadRequest(ElasticError):
    """The request is refused as it stands; the message tells what to change."""

    code = "bad_request"


class NotFound(ElasticError):
    """There is no such job, policy, host or engine."""

    code = "not_found"


class NotAllowed(ElasticError):
    """The job is another user's, or the user lacks a right; the message names whom to ask."""

    code = "not_allowed"


class TooMuch(ElasticError):
    """A limit of the pool is reached; the message names it and who can raise it."""

    code = "too_much"


class TooFast(ElasticError):
    """Too many requests came in a short time; the message tells when to try again."""

    code = "too_fast"


class ProtocolError(ElasticError):
    """A message has another version, is too large or is not one of this protocol."""

    code = "protocol"


class DaemonUnreachable(ElasticError):
    """No daemon answers; the message tells where it was searched and how to start one."""

    code = "unreachable"


class JournalError(ElasticError):
    """The journal can't be written or read (disk full, newer format, damaged)."""

    code = "journal"


class PackagingError(ElasticError):
    """The cell can't be packaged: syntax error, unpicklable or huge name; the message names it and the remedy."""

    code = "packaging"
    titled = False


class EngineError(ElasticError):
    """An engine can't run the job; the message names the missing piece."""

    code = "engine"


class JobFailed(ElasticError):
    """The job failed; the message begins with the first failing rank's traceback."""

    code = "job_failed"
    titled = False


class JobCancelled(ElasticError):
    """The job was cancelled before it could give a result."""

    code = "job_cancelled"


def message_of(problem: BaseException) -> str:
    """Return the message of a user's exception, whose `__str__` may raise anything."""
    try:
        return str(problem)
    except BaseException as another:
        return f"<its message can't be made: {type(another).__name__}>"


def described(problem: BaseException) -> str:
    """Format type and message of a user's exception in one line: `ValueError: no row 7`."""
    text = " ".join(message_of(problem).split())
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__


def by_code(code: str, message: str) -> ElasticError:
    """Return the error that was sent as `code` and `message`; an `ElasticError` if the code is unknown here."""
    kinds: list[type[ElasticError]] = ElasticError.__subclasses__()
    return next((kind for kind in kinds if kind.code == code), ElasticError)(message)
