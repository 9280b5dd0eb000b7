"""Decide which user may do what. Knows names and rights; must not know sockets: the transport identifies users.

A pool has an owner, the user that its daemon runs as. The owner, root and the names in the configuration are its
administrators. On a personal pool nobody else is admitted; on a shared one every user may submit, see the queue, and
control their own jobs.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from jupyter_elastic.scheduler.access.shares import INTERACTIVE_S, SESSION_S, Terms
from jupyter_elastic.types import SCOPE, Identity, JobId, JobSpec, Right
from jupyter_elastic.types.errors import NotAllowed

_PEER = re.compile(r"[^:]*:(\d{1,10}):(\d{1,10}):(\d{1,10})")


class Guest(NamedTuple):
    """A user whose identity has rights of its own, such as those of a registered key, whatever the name's are."""

    user: str
    rights: tuple[Right, ...]


Caller: TypeAlias = str | Guest
"""Requester: a user by name, known by a UNIX id or from the table of keys, or a guest."""


def name_of(caller: Caller) -> str:
    """Return the user's name."""
    return caller if isinstance(caller, str) else caller.user


def caller_of(identity: Identity) -> Caller:
    """Return the caller that has this identity: a guest unless the name's own rights count."""
    return identity.user if identity.rights is None else Guest(identity.user, identity.rights)


class Rights:
    """Rights of one pool."""

    def __init__(self, *, owner: str | None = None, admins: Iterable[str] = ()) -> None:
        self.owner = owner or user_name(os.getuid())
        self.admins = frozenset({self.owner, user_name(0), *admins})
        own = {self.owner: os.getuid(), user_name(0): 0} if owner is None else {}
        ids = {name: uid_of(name) for name in admins} | own
        self.ids = {name: uid for name, uid in ids.items() if uid is not None}
        """UNIX ids of the administrators: another user who takes such a name later is none."""

    def is_admin(self, caller: Caller) -> bool:
        """True if this user administers the pool."""
        return self._may(caller, "administer")

    def sees_all(self, caller: Caller) -> bool:
        """True if this user sees all of others' jobs."""
        return self._may(caller, "see-all")

    def submit(self, caller: Caller) -> None:
        """Check that the caller may submit jobs, and change their own. NotAllowed."""
        if isinstance(caller, Guest) and not self._may(caller, "submit"):
            raise NotAllowed(
                f"the token that {caller.user} came by has no scope {SCOPE}submit: it may look only; "
                "ask whoever runs the Hub for a role that has it"
            )

    def register_keys(self, caller: Caller, user: str, rights: Iterable[Right]) -> None:
        """Check that the caller may let keys of `user` with these rights connect. NotAllowed."""
        if isinstance(caller, Guest) or not self.is_admin(caller):
            raise NotAllowed(f"only an administrator ({self._admins()}) on this machine may register keys of others")
        if user in self.admins and "administer" not in rights:
            raise NotAllowed(
                f"{user} is an administrator of this pool: nobody else may be called so, and the Hub does not vouch "
                f"for that one: its token has no scope {SCOPE}administer"
            )

    def change_job(self, caller: Caller, owner: str, job: JobId) -> None:
        """Check that the caller may cancel or resize a job of `owner`. NotAllowed."""
        self.submit(caller)
        if name_of(caller) != owner and not self.is_admin(caller):
            raise NotAllowed(f"job {job} belongs to {owner}; ask {owner} or an administrator ({self._admins()})")

    def release_job(self, caller: Caller, job: JobId) -> None:
        """Check that the caller may declare that nothing of a job runs any more. NotAllowed."""
        if not self.is_admin(caller):
            raise NotAllowed(f"only an administrator ({self._admins()}) may release the slots of job {job}")

    def drain(self, caller: Caller) -> None:
        """Check that the caller may keep slots, or the whole pool, from new work. NotAllowed."""
        if not self.is_admin(caller):
            raise NotAllowed(
                f"only an administrator ({self._admins()}) may drain slots or put the pool into maintenance"
            )

    def report(self, user: str, owner: str, job: JobId) -> None:
        """Check that an agent of `user` may report on a job of `owner`: only the owner's can see its processes."""
        if user != owner:
            raise NotAllowed(f"job {job} belongs to {owner}: only an agent of {owner} may report on it")

    def switch_policy(self, caller: Caller, *, source: bool) -> None:
        """Check that the caller may switch the policy of the whole pool, or give one as source text. NotAllowed."""
        if not self._may(caller, "administer" if source else "policy"):
            what = "give it a policy as source text" if source else "switch its policy"
            raise NotAllowed(
                f"this pool is {self.owner}'s: only an administrator ({self._admins()}) may {what}; "
                "`%%policy --shadow` shows what a policy would do"
            )

    def read_metrics(self, caller: Caller) -> None:
        """Check that the caller may read the daemon's figures, which name users and their slots. NotAllowed."""
        if not self.sees_all(caller):
            raise NotAllowed(f"only an administrator ({self._admins()}) may read the metrics of this pool")

    def shut_down(self, caller: Caller) -> None:
        """Check that the caller may end the daemon: the user that it runs as, or root. NotAllowed."""
        if caller not in {self.owner, user_name(0)}:
            raise NotAllowed(f"this daemon runs as {self.owner}; only {self.owner} may end it")

    def ask_for(self, caller: Caller, spec: JobSpec, terms: Terms) -> None:
        """Check that the caller's job may have its priority and refuse to be paused. NotAllowed.

        A session's cell can't be paused; the number of sessions and `run_for` bound those.
        """
        highest = terms.priority or 0
        may_stay = spec.preemptible or bool(spec.session) or highest > 0
        if self.is_admin(caller) or (spec.priority <= highest and may_stay):
            return
        what = f"a priority above {highest}" if spec.priority > highest else "jobs that are never paused (--no-preempt)"
        raise NotAllowed(
            f"on this pool {name_of(caller)} may not have {what}: leave that out, or ask an administrator "
            f"({self._admins()}) for `priority` in the file of shares"
        )

    def hold(self, least: int, limits: Mapping[tuple[str, str], int]) -> None:
        """Check that a job that counts for these limits of owner and group may need `least` slots. NotAllowed."""
        for (_, name), limit in limits.items():
            if least > limit:
                slots = "1 slot" if limit == 1 else f"{limit} slots"
                raise NotAllowed(
                    f"{name} may hold {slots} at most, and this job needs {least}: ask for fewer, or ask administrator "
                    f"({self._admins()}) for more `max_slots` in the file of shares"
                )

    def run_for(self, caller: Caller, max_time_s: float | None, terms: Terms, *, session: bool = False) -> float | None:
        """Return the time limit for a job of the caller that requests this one. NotAllowed if it exceeds the maximum.

        A session's cell always has a limit, as it is never paused, unless the caller may have jobs that refuse pauses.
        """
        longest = terms.max_time_s
        if session and not terms.priority:
            longest = longest or SESSION_S
        if longest is None or self.is_admin(caller):
            return max_time_s
        if max_time_s is not None and max_time_s > longest:
            raise NotAllowed(
                f"on this pool {'cells of sessions' if session else 'jobs'} of {name_of(caller)} may run for "
                f"{longest:g} s at most, not {max_time_s:g}: lower "
                f"--max-time, or ask an administrator ({self._admins()}) for `max_time_s` in the file of shares"
            )
        return longest if max_time_s is None else max_time_s

    def wait_for(self, caller: Caller, max_time_s: float | None, terms: Terms) -> float:
        """Return the time limit for an interactive job of the caller that requests this one. NotAllowed."""
        said = INTERACTIVE_S if terms.interactive_s is None else terms.interactive_s
        if self.is_admin(caller):
            return max_time_s or said or INTERACTIVE_S
        ask = f"ask an administrator ({self._admins()}) for `interactive_s` in the file of shares"
        if not said:
            who = name_of(caller)
            raise NotAllowed(f"on this pool {who} may not have interactive jobs: leave --interactive out, or {ask}")
        if max_time_s is not None and max_time_s > said:
            raise NotAllowed(
                f"on this pool an interactive job of {name_of(caller)} may run for {said:g} s at most, not "
                f"{max_time_s:g}: lower --max-time, leave --interactive out, or {ask}"
            )
        return max_time_s or min(said, terms.max_time_s or said)

    def _may(self, caller: Caller, right: Right) -> bool:
        if isinstance(caller, str):
            return caller in self.admins
        return right in caller.rights or "administer" in caller.rights

    def _admins(self) -> str:
        return ", ".join(sorted(self.admins))


def uid_of_peer(address: str) -> int | None:
    """Return the user's id from libzmq's `Peer-Address` of a UNIX socket (`localhost:uid:gid:pid`); else None.

    libzmq asks the kernel (SO_PEERCRED) when the connection is made; the peer can't choose this text.
    """
    match = _PEER.fullmatch(address)
    return int(match[1]) if match else None


def user_name(uid: int) -> str:
    """Return the present name of a UNIX user; `#uid`, which no user can be called, if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"#{uid}"


def uid_of(name: str) -> int | None:
    """Return the present UNIX id of this name; None if there is no such user."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None
