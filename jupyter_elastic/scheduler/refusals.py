"""What the daemon refused, as few events: the first of its kind soon, then how many more there were, ever less often.

So nothing that somebody was refused is forgotten, and a flood of refusals does not fill the journal: of one user 20
kinds are told apart, and each is told of after a minute, then after two, until once an hour. Pure: numbers and names.
"""

from __future__ import annotations

from msgspec import Struct

from jupyter_elastic.types import JobId

FIRST_S, LONGEST_S = 60.0, 3600.0
"""How long refusals of one kind are counted before they are told of again: at first, and at most."""
KINDS = 20
"""Of one user; what is refused beyond them is counted together."""
USERS = 1_000
"""Whose refusals are told apart; those of others are counted together."""
MESSAGE_CHARS = 500
OTHERS = ""
"""Who stands for the users beyond `USERS`: nobody is called so."""


class Refusal(Struct, frozen=True):
    """Refusals of one kind, as `AsksRefused` tells of them."""

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
    """Counts what is refused. `now` is monotonic."""

    def __init__(self) -> None:
        self._users: dict[str, dict[tuple[str, str], _Window]] = {}

    def add(self, user: str, ask: str, code: str, message: str, about: JobId | None, now: float) -> None:
        """A user was refused something."""
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
        """What is to be told now."""
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
