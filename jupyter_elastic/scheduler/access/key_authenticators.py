"""Authenticate CURVE public keys: those of an administrator's table, and those that a Hub's service has registered.

Both answer at once, in the daemon's loop. They know keys; they must not know connections.
"""

from __future__ import annotations

import logging
from pathlib import Path

from jupyter_elastic.types import AuthenticatorContext, Credentials, Identity

log = logging.getLogger(__name__)


class KeyTable:
    """The authenticator `keys`: the table of an administrator.

    A line of the table is `key user`; `# ` begins a comment. The table is read again when the file changes, so that a
    key can be added or removed while the daemon runs. A malformed line is skipped and logged.
    """

    def __init__(self, pool: AuthenticatorContext) -> None:
        self.path = Path(pool.key_table)
        self._required = pool.key_table_required
        self._stamp: tuple[int, int] | None = None
        self._users: dict[str, str] = {}
        self._problems: frozenset[str] = frozenset()

    def caller(self, credentials: Credentials) -> Identity | None:
        """Return the user of a key, with the rights of the name; None if the key is not in the table."""
        if not credentials.key:
            return None
        self.read_again()
        user = self._users.get(credentials.key)
        return None if user is None else Identity(user, rights=None)

    def read_again(self) -> bool:
        """Read the file if it has changed; True if it had."""
        try:
            info = self.path.stat()
            stamp = (info.st_mtime_ns, info.st_size)
            if stamp == self._stamp:
                return False
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError as problem:  # closed while it can't be read
            if isinstance(problem, FileNotFoundError) and not self._required and self._stamp is None:
                return False
            self._take({}, [f"{self.path} can't be read, and lets nobody in ({problem})"])
            changed, self._stamp = self._stamp is not None, None
            return changed
        self._take(*parse_keys(text, str(self.path)))
        self._stamp = stamp
        return True

    def _take(self, users: dict[str, str], problems: list[str]) -> None:
        for problem in problems:
            if problem not in self._problems:
                log.warning("%s", problem)
        self._users, self._problems = users, frozenset(problems)


def parse_keys(text: str, where: str = "the table of keys") -> tuple[dict[str, str], list[str]]:
    """Return (user by key, problems of lines that aren't `key user`)."""
    users: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0] == "#":  # a key may begin with `#` itself, but never stands alone
            continue
        if len(fields) != 2 or len(fields[0]) != 40:
            problems.append(f"{where}, line {number}: expected a public key of 40 characters, a space and a user name")
        else:
            users[fields[0]] = fields[1]
    return users, problems


class RegisteredKeys:
    """The authenticator `hub`: keys that are registered by a Hub's service, each with rights of its own."""

    def __init__(self, pool: AuthenticatorContext) -> None:
        self._registered = pool.registered

    def caller(self, credentials: Credentials) -> Identity | None:
        """Return the user, the rights and the groups of a key, as the registrar named them."""
        found = self._registered(credentials.key)
        return None if found is None else Identity(found.user, found.rights, found.groups)
