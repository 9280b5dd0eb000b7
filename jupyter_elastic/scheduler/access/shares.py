"""Read the shares file: members of groups, shares of users and groups, and terms for their jobs.

The administrator's file:

    [default]
    max_time_s = 86400

    [groups.vision]
    members = ["ada", "grace"]
    weight = 2.0
    quota = 4

    [users.ada]
    weight = 3.0
    priority = 10

A weight is a user's or group's part of the slots against the others' (1 if absent), a quota the slots guaranteed to
it. The terms of a user's jobs come from the user's entry, else the group's (for each member), else `default`.
Knows the file's form; must not know policies.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from jupyter_elastic.scheduler.core.rule import Caps
from jupyter_elastic.types.errors import BadRequest

log = logging.getLogger(__name__)


class Terms(Struct, frozen=True, forbid_unknown_fields=True):
    """Terms for a user's jobs; None: the file sets no such term here."""

    priority: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """Highest priority; from 1 on jobs may also refuse to be paused. Unset: 0."""
    max_time_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Longest running time in seconds, also for jobs that name none. Unset: unlimited."""

    interactive_s: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    """Longest running time of an interactive job in seconds; 0: no such jobs. Unset: `INTERACTIVE_S`."""
    interactive_jobs: Annotated[int, Meta(ge=1)] | None = None
    """Maximum number of interactive jobs at a time. Unset: 1."""
    max_jobs: Annotated[int, Meta(ge=0)] | None = None
    """Maximum number of unfinished jobs. Unset: `--max-jobs`."""
    max_sessions: Annotated[int, Meta(ge=1)] | None = None
    """Maximum number of sessions at a time. Unset: `SESSIONS`."""
    parked_mb: Annotated[int, Meta(ge=1)] | None = None
    """Memory of suspended sessions together, in megabytes. Unset: a quarter of the machine's."""
    max_slots: Annotated[int, Meta(ge=1)] | None = None
    """Maximum number of slots that the user's (a group: all members') jobs hold together. Unset: all."""


class Share(Terms, frozen=True, forbid_unknown_fields=True):
    """Share of a user."""

    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    quota: Annotated[int, Meta(ge=0)] = 0
    """Guaranteed slots."""


class GroupShare(Share, frozen=True, forbid_unknown_fields=True):
    """Share of a group, for its members to divide."""

    members: tuple[str, ...] = ()


class Shares(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the file."""

    users: dict[str, Share] = {}
    groups: dict[str, GroupShare] = {}
    default: Terms = Terms()

    @property
    def weights(self) -> dict[str, float]:
        """Weights by name of user or group."""
        return {name: share.weight for name, share in [*self.users.items(), *self.groups.items()]}

    @property
    def quotas(self) -> dict[str, int]:
        """Quotas by name of user or group, without those that are 0."""
        return {name: share.quota for name, share in [*self.users.items(), *self.groups.items()] if share.quota}

    @property
    def most(self) -> Caps:
        """Maximum numbers of slots of users and groups."""
        users, groups = (
            {name: share.max_slots for name, share in shares.items() if share.max_slots is not None}
            for shares in (self.users, self.groups)
        )
        return Caps(users, groups, self.default.max_slots)

    def group_of(self, user: str, vouched: Collection[str] = ()) -> str:
        """Return the user's group: the one that names the user, else the first one here that a Hub vouches for.

        Empty for a user without group.
        """
        named = (name for name, group in self.groups.items() if user in group.members)
        return next(named, "") or next((name for name in self.groups if name in vouched), "")

    def terms_of(self, user: str, vouched: Collection[str] = ()) -> Terms:
        """Return the terms for each job of the user; `vouched` as in `group_of`."""
        said = (self.users.get(user), self.groups.get(self.group_of(user, vouched)), self.default)
        return Terms(
            **{
                name: next((value for terms in said if (value := getattr(terms, name, None)) is not None), None)
                for name in Terms.__struct_fields__
                if name != "max_slots"
            }
        )


INTERACTIVE_S = 600.0
"""Default maximum of seconds that an interactive job runs."""
SESSIONS = 4
"""Default maximum number of sessions of a user of a shared pool at a time."""
SESSION_S = 14_400.0
"""Default maximum of seconds that a cell of a session runs."""
EQUAL = Shares()
"""Equal shares for all users, without groups."""


class SharesFile:
    """The file, read again when it changes; while it is invalid, the last valid content counts."""

    def __init__(self, path: Path | None) -> None:
        """Read the file; raises as `read_shares`. None: `EQUAL`, for ever."""
        self.path = path
        self._stamp = self._now()
        self.shares = EQUAL if path is None else read_shares(path)

    def changed(self) -> bool:
        """Read a changed file; True if other shares count from now on. Errors in the file are logged once."""
        stamp = self._now()
        if self.path is None or stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            shares = read_shares(self.path)
        except BadRequest as problem:
            log.warning("%s; the shares stay what they were", problem)
            return False
        changed, self.shares = shares != self.shares, shares
        return changed

    def _now(self) -> tuple[int, int, int] | None:
        if self.path is None:
            return None
        try:
            info = self.path.stat()
        except OSError:
            return None
        return info.st_mtime_ns, info.st_size, info.st_ino


def read_shares(path: Path) -> Shares:
    """Return the shares in a TOML file; BadRequest names the file, what is wrong and where."""
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise BadRequest(f"--shares: {path} can't be read ({problem})") from problem
    except tomllib.TOMLDecodeError as problem:
        raise BadRequest(f"--shares: {path}: {problem}") from problem
    default = said.get("default")
    for name in ("weight", "quota"):
        if isinstance(default, dict) and name in default:
            what = "weight 1, against which others' count" if name == "weight" else "no quota"
            raise BadRequest(
                f"--shares: {path}: [default] has no `{name}`: who is not named has {what}; "
                f"write `{name}` under [users.NAME] or [groups.NAME]"
            )
    try:
        shares = msgspec.convert(said, Shares)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"--shares: {path}: {problem}") from problem
    both = sorted(shares.users.keys() & shares.groups.keys())
    if both:
        raise BadRequest(f"--shares: {path}: {both[0]} is the name of a user and of a group; give the group another")
    members = sorted(name for group in shares.groups.values() for name in group.members)
    twice = sorted({name for name in members if members.count(name) > 1})
    if twice:
        raise BadRequest(f"--shares: {path}: {twice[0]} is in more than one group; a user has one")
    return shares
