"""Merge the daemon's refusals into few events: the first of a kind soon, then counts of later ones, ever less often.

So no refusal is lost, and a flood of refusals does not fill the journal: for each user 20 kinds are counted separately,
and each is reported after a minute, then after two, until once an hour. Pure: numbers and names.
"""

from __future__ import annotations

from msgspec import Struct

from jupyter_elastic.types import JobId

FIRST_S, LONGEST_S = 60.0, 3600.0
"""First and longest period, in seconds, over which refusals of one kind are counted before they are reported."""
KINDS = 20
"""Maximum number of kinds for each user; refusals beyond them are counted together."""
USERS = 1_000
"""Maximum number of users that are counted separately; refusals of other users are counted together."""
MESSAGE_CHARS = 500
OTHERS = ""
"""Name for the users beyond `USERS`; no user has it."""


class Refusal(Struct, frozen=True):
    """Refusals of one kind, as `AsksRefused` reports them."""

    user: str
    ask: str
    code: str
    count: int
    message: str
    about: JobId | None


class _Window(Struct):
    until: float
    length_s: float = FIRST_S / 2
    count: int = 0
    message: str = ""
    about: JobId | None = None


class Refusals:
    """Counts of refusals. `now` is monotonic."""

    def __init__(self) -> None:
        self._users: dict[str, dict[tuple[str, str], _Window]] = {}

    def add(self, user: str, ask: str, code: str, message: str, about: JobId | None, now: float) -> None:
        """Count a refusal."""
        if user not in self._users and len(self._users) >= USERS:
            user = OTHERS
        kinds = self._users.setdefault(user, {})
        kind = (ask, code)
        if kind not in kinds and len(kinds) >= KINDS:
            kind = ("", "")
        window = kinds.setdefault(kind, _Window(until=now))
        window.count += 1
        window.message, window.about = message[:MESSAGE_CHARS], about

    def due(self, now: float) -> list[Refusal]:
        """Return the refusals that are to be reported now."""
        told = []
        for user, kinds in list(self._users.items()):
            for kind, window in list(kinds.items()):
                if now < window.until:
                    continue
                if not window.count:
                    del kinds[kind]
                    continue
                told.append(Refusal(user, *kind, window.count, window.message, window.about))
                length_s = min(2 * window.length_s, LONGEST_S)
                kinds[kind] = _Window(until=now + length_s, length_s=length_s)
            if not kinds:
                del self._users[user]
        return told
