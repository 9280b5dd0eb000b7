"""Find the user of a connection by the authenticators that the operator has named.

An authenticator can give an identity to credentials that nobody refuses; it can lift no refusal of another. Those of
this package answer for UNIX ids, the table of keys and registered keys; others come by entry point. What may be slow
is asked in a thread, so that it delays nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias, get_args

from jupyter_elastic.platform import entry_points
from jupyter_elastic.scheduler.access.auth import user_name
from jupyter_elastic.scheduler.access.key_authenticators import KeyTable, RegisteredKeys
from jupyter_elastic.types import Authenticator, AuthenticatorContext, Credentials, Identity, Right
from jupyter_elastic.types.errors import BadRequest, NotAllowed
from jupyter_elastic.types.texts import has_control, visible

GROUP = "jupyter_elastic.authenticators"
NAME_CHARS = 200

log = logging.getLogger(__name__)

Verdict: TypeAlias = Identity | NotAllowed


class UnixUsers:
    """The authenticator `unix`: users of this machine. The id identifies a user, the name is for people.

    The name is looked up anew for each connection. A name belongs to the id that was seen with it first
    (`AuthenticatorContext.uid_of`): the same name with another id is another user, `name#id`, and so is an id that was
    used before under another name.

    Args:
        pool: The pool.
        look_up: Returns the name of an id, `#id` if it has none; may be slow.
    """

    def __init__(self, pool: AuthenticatorContext, look_up: Callable[[int], str] = user_name) -> None:
        self._bound, self._look_up = pool.uid_of, look_up

    def caller(self, credentials: Credentials) -> Identity | None:
        """Return the user of a UNIX id, with the rights of the name."""
        uid = credentials.uid
        if uid is None:
            return None
        try:
            name = self._look_up(uid)
        except Exception:  # whatever a directory's module does: the id is known, its name is not
            name = f"#{uid}"
        bound = self._bound(name)
        return Identity(name if bound is None or bound == uid else f"{name}#{uid}", rights=None)


OWN: Mapping[str, Callable[[AuthenticatorContext], Authenticator]] = {
    "unix": UnixUsers, "keys": KeyTable, "hub": RegisteredKeys,
}  # fmt: skip
"""Authenticators of this package, active unless the operator names others; no package can take their names."""


def make(names: Collection[str], pool: AuthenticatorContext) -> dict[str, Authenticator]:
    """Make the authenticators of these names; none: `OWN`.

    BadRequest if there is none of that name, with those that there are, or if its package can't make it.
    """
    return {name: _made(name, pool) for name in names or OWN}


def _made(name: str, pool: AuthenticatorContext) -> Authenticator:
    installed = entry_points.installed(GROUP)
    if name not in OWN and name not in installed:
        close = difflib.get_close_matches(name, known := sorted({*OWN, *installed}), 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise BadRequest(f"there is no authenticator {name!r}; there are {', '.join(known)}{hint}")
    kind = OWN.get(name) or entry_points.load(installed[name], BadRequest)
    try:
        made: Authenticator = kind(pool)
    except Exception as problem:
        raise BadRequest(f"authenticator {name}: {type(problem).__name__}: {problem}") from problem
    return made


class Authenticators:
    """All active authenticators.

    Args:
        active: Authenticators by name; where several know the same credentials, the first gives the identity.
        admins: Administrators' names, which only an identity with such rights may have.
        names: Names of UNIX ids that are known from the start.
    """

    def __init__(
        self, active: Mapping[str, Authenticator], admins: Collection[str] = (), names: Mapping[int, str] | None = None
    ) -> None:
        self._active, self._admins = active, admins
        self._quick = {name: one for name, one in active.items() if isinstance(one, KeyTable | RegisteredKeys)}
        self._names = dict(names or {})
        self._asked: dict[Credentials, list[Callable[[Verdict], None]]] = {}

    def known(self, uid: int) -> str:
        """Return the last known name of this user, for people and for counting; looks nothing up."""
        return self._names.get(uid, f"#{uid}")

    def changed(self) -> bool:
        """Read the table of keys again; True if it has changed."""
        return any(one.read_again() for one in self._quick.values() if isinstance(one, KeyTable))

    def ask(self, credentials: Credentials, then: Callable[[Verdict], None]) -> None:
        """Call `then` in the running loop with the user, or with the refusal; at once if nobody slow is to be asked."""
        if (asked := self._asked.get(credentials)) is not None:
            asked.append(then)
            return
        slow = {
            name: one
            for name, one in self._active.items()
            if name not in self._quick and not (isinstance(one, UnixUsers) and credentials.uid is None)
        }
        if not slow:
            then(self._verdict(credentials, {}))
            return
        self._asked[credentials] = [then]
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._find, args=(loop, slow, credentials), name="user name", daemon=True).start()

    def _find(
        self, loop: asyncio.AbstractEventLoop, slow: Mapping[str, Authenticator], credentials: Credentials
    ) -> None:
        answers = {name: self._answer(name, one, credentials) for name, one in slow.items()}
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._found, credentials, answers)

    def _found(self, credentials: Credentials, answers: Mapping[str, Verdict | None]) -> None:
        verdict = self._verdict(credentials, answers)
        if credentials.uid is not None and isinstance(verdict, Identity):
            self._names[credentials.uid] = verdict.user
        for then in self._asked.pop(credentials):
            then(verdict)

    def _verdict(self, credentials: Credentials, slow: Mapping[str, Verdict | None]) -> Verdict:
        answers = {**slow, **{name: self._answer(name, one, credentials) for name, one in self._quick.items()}}
        for answer in answers.values():
            if isinstance(answer, NotAllowed):
                return answer
        identities = (answer for name in self._active if (answer := answers.get(name)) is not None)
        unknown = NotAllowed(f"none of this pool's authenticators ({', '.join(self._active)}) knows you")
        return next(identities, unknown)

    def _answer(self, name: str, one: Authenticator, credentials: Credentials) -> Verdict | None:
        """Ask one authenticator; whatever it does wrong is a refusal."""
        try:
            answer = one.caller(credentials)
            problem = "" if answer is None else self._problem(answer)
        except NotAllowed as refusal:
            return NotAllowed(visible(str(refusal))[:1000])
        except BaseException as error:  # a thread that ends here would leave the connection without a word
            log.exception("authenticator %s failed, and refuses by that", name)
            problem = f"it failed ({type(error).__name__})"
        else:
            if problem:
                log.error("authenticator %s is refused: %s", name, problem)
        text = f"the pool's authenticator {name} could not judge this connection: {problem}"
        return NotAllowed(f"{text}; the daemon's log has more, ask its administrator") if problem else answer

    def _problem(self, answer: Any) -> str:
        """Return what is wrong with an identity; empty if nothing is."""
        if not isinstance(answer, Identity) or not isinstance(answer.user, str):
            return f"it answered {type(answer).__name__}, not an Identity"
        user, rights, groups = answer
        if not 0 < len(user) <= NAME_CHARS or has_control(user):
            return f"a user's name has 1 to {NAME_CHARS} characters, none of them for control"
        if rights is not None and not set(rights) <= {*get_args(Right)}:
            return f"rights are {', '.join(get_args(Right))}"
        if not all(isinstance(group, str) and not has_control(group) for group in groups):
            return "groups are names without control characters"
        if rights is not None and user in self._admins and "administer" not in rights:
            return f"{user} is an administrator of this pool, and this identity has not the right to administer"
        return ""
