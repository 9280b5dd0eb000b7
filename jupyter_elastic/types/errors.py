"""Public exceptions. Each message says what went wrong and what to do next. Knows nothing of the rest."""

from __future__ import annotations


class ElasticError(Exception):
    """The base of all our errors. `code` is stable and travels over the wire; the message is for people."""

    code = "error"
    titled = True
    """Whether a notebook shows its name before the message."""

    def _render_traceback_(self, *_arguments: object, **_options: object) -> list[str]:
        """The lines that IPython shows: the message without the traceback of this package."""
        return f"{type(self).__name__}: {self}".splitlines() if self.titled else str(self).splitlines()


class BadRequest(ElasticError):
    """The request is refused as it stands; the message says what to change."""

    code = "bad_request"


class NotFound(ElasticError):
    """There is no such job, policy, host or engine."""

    code = "not_found"


class NotAllowed(ElasticError):
    """Another user's job, or a right that this user lacks; the message says whom to ask."""

    code = "not_allowed"


class TooMuch(ElasticError):
    """A limit of the pool is reached; the message names it and who can raise it."""

    code = "too_much"


class TooFast(ElasticError):
    """More was asked in a short time than the pool allows; the message says when to ask again."""

    code = "too_fast"


class ProtocolError(ElasticError):
    """A message that isn't ours, is too large, or of another version."""

    code = "protocol"


class DaemonUnreachable(ElasticError):
    """No daemon answers; the message says where it was looked for and how to start one."""

    code = "unreachable"


class JournalError(ElasticError):
    """The journal can't be written or read (disk full, newer format, damaged)."""

    code = "journal"


class PackagingError(ElasticError):
    """The cell can't be packaged: syntax error, unpicklable or huge name; the message names it and the way out."""

    code = "packaging"
    titled = False


class EngineError(ElasticError):
    """An engine can't run the job; the message names the missing piece."""

    code = "engine"


class JobFailed(ElasticError):
    """The job failed; the message opens with the first failing rank's traceback."""

    code = "job_failed"
    titled = False


class JobCancelled(ElasticError):
    """The job was cancelled before it could give a result."""

    code = "job_cancelled"


def message_of(problem: BaseException) -> str:
    """The message of somebody's exception, whose `__str__` may raise anything."""
    try:
        return str(problem)
    except BaseException as another:
        return f"<its message can't be made: {type(another).__name__}>"


def described(problem: BaseException) -> str:
    """`ValueError: no row 7`: type and message of somebody's exception, in a line."""
    text = " ".join(message_of(problem).split())
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__


def by_code(code: str, message: str) -> ElasticError:
    """The error that travelled as `code` and `message`; of a code that isn't known here an `ElasticError`."""
    kinds: list[type[ElasticError]] = ElasticError.__subclasses__()
    return next((kind for kind in kinds if kind.code == code), ElasticError)(message)
