"""Who may do what. Knows names and rights; must not know sockets: who is speaking was found out by the transport.

A pool has an owner, the user its daemon runs as. He, root and the names that the configuration gives are its
administrators. On a personal pool nobody else gets in at all; on a shared one everybody may submit, see the queue, and
do as they like with their own jobs.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from jupyter_elastic.scheduler.shares import Terms
from jupyter_elastic.types import JobId, JobRequest
from jupyter_elastic.types.errors import BadRequest, NotAllowed

_PEER = re.compile(r"[^:]*:(\d{1,10}):(\d{1,10}):(\d{1,10})")


class Rights:
    """The rights of one pool."""

    def __init__(self, *, owner: str | None = None, admins: Iterable[str] = ()) -> None:
        self.owner = owner or user_name(os.getuid())
        self.admins = frozenset({self.owner, user_name(0), *admins})

    def is_admin(self, user: str) -> bool:
        """Whether this user administers the pool."""
        return user in self.admins

    def change_job(self, user: str, owner: str, job: JobId) -> None:
        """May `user` cancel or resize a job of `owner`? NotAllowed."""
        if user != owner and not self.is_admin(user):
            raise NotAllowed(f"job {job} belongs to {owner}; ask {owner} or an administrator ({self._admins()})")

    def report(self, user: str, owner: str, job: JobId) -> None:
        """May an agent of `user` report on a job of `owner`? Only the owner's: nobody else can see its processes."""
        if user != owner:
            raise NotAllowed(f"job {job} belongs to {owner}: only an agent of {owner} may report on it")

    def switch_policy(self, user: str, *, source: bool) -> None:
        """May `user` switch the policy of the whole pool, or bring one as source text? NotAllowed."""
        if not self.is_admin(user):
            what = "give it a policy as source text" if source else "switch its policy"
            raise NotAllowed(
                f"this pool is {self.owner}'s: only an administrator ({self._admins()}) may {what}; "
                "`%%policy --shadow` shows what a policy would do"
            )

    def shut_down(self, user: str) -> None:
        """May `user` end the daemon? Only the one it runs as, and root; else NotAllowed."""
        if user not in {self.owner, user_name(0)}:
            raise NotAllowed(f"this daemon runs as {self.owner}; only {self.owner} may end it")

    def ask_for(self, user: str, spec: JobRequest, terms: Terms) -> None:
        """May a job of `user` go before others' and refuse to be paused, as this one asks? NotAllowed."""
        highest = terms.priority or 0
        if self.is_admin(user) or (spec.priority <= highest and (spec.preemptible or highest > 0)):
            return
        what = f"a priority above {highest}" if spec.priority > highest else "jobs that are never paused (--no-preempt)"
        raise NotAllowed(
            f"on this pool {user} may not have {what}: leave that out, or ask an administrator ({self._admins()}) "
            "for `priority` in the file of shares"
        )

    def run_for(self, user: str, max_time_s: float | None, terms: Terms) -> float | None:
        """The time limit of a job of `user` that asks for this one; NotAllowed where it may not run so long."""
        longest = terms.max_time_s
        if longest is None or self.is_admin(user):
            return max_time_s
        if max_time_s is not None and max_time_s > longest:
            raise NotAllowed(
                f"on this pool jobs of {user} may run for {longest:g} s at most, not {max_time_s:g}: lower --max-time, "
                f"or ask an administrator ({self._admins()}) for `max_time_s` in the file of shares"
            )
        return longest if max_time_s is None else max_time_s

    def _admins(self) -> str:
        return ", ".join(sorted(self.admins))


def user_of_peer(address: str) -> str | None:
    """The user behind a `Peer-Address` that libzmq gives for a UNIX socket (`localhost:uid:gid:pid`); else None.

    libzmq asks the kernel (SO_PEERCRED) when the connection is made; the peer can't choose what stands there.
    """
    match = _PEER.fullmatch(address)
    return user_name(int(match[1])) if match else None


@lru_cache(maxsize=4096)
def user_name(uid: int) -> str:
    """The name of a UNIX user; `#uid`, which no user can be called, where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"#{uid}"


class Keys:
    """The table of CURVE public keys that may connect over TCP, one `key user` a line; `# ` begins a comment.

    It is read again when the file changes, so that a key can be added or struck off while the daemon runs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._users: dict[str, str] = {}

    def user(self, key: str) -> str | None:
        """The user whose Z85 key this is; None for an unknown key. Never raises: it is asked inside a handshake."""
        try:
            info = self.path.stat()
            stamp = (info.st_mtime_ns, info.st_size)
            if stamp != self._stamp:
                self._users = parse_keys(self.path.read_text(encoding="utf-8"), str(self.path))
                self._stamp = stamp
        except (OSError, UnicodeDecodeError, BadRequest):
            self._users, self._stamp = {}, None  # closed while it can't be read
        return self._users.get(key)


def parse_keys(text: str, where: str = "the table of keys") -> dict[str, str]:
    """Key to user. BadRequest names a line that isn't `key user`."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0] == "#":  # a key may begin with `#` itself, but never stands alone
            continue
        if len(fields) != 2 or len(fields[0]) != 40:
            raise BadRequest(f"{where}, line {number}: expected a public key of 40 characters, a space and a user name")
        users[fields[0]] = fields[1]
    return users
