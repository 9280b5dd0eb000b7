"""Who is in which group, what shares of the pool users and groups have, and what their jobs may ask for.

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

A weight is a user's or group's part of the slots against the others' (1 when absent), a quota the slots guaranteed to
it. What a user's jobs may ask for stands under the user, else under the group (for each member), else under `default`.
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

from jupyter_elastic.scheduler.core.most import Most
from jupyter_elastic.types.errors import BadRequest

log = logging.getLogger(__name__)


class Terms(Struct, frozen=True, forbid_unknown_fields=True):
    """What the jobs of a user may have; None: nothing is said here."""

    priority: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """The highest priority; from 1 on jobs may also refuse to be paused. Nobody said anything: 0."""
    max_time_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """The longest running time; a job that names none has this one. Nobody said anything: any."""

    interactive_s: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    """The longest that an interactive job runs; 0: there may be none. Nobody said anything: `INTERACTIVE_S`."""
    interactive_jobs: Annotated[int, Meta(ge=1)] | None = None
    """Interactive jobs at a time. Nobody said anything: 1."""
    max_jobs: Annotated[int, Meta(ge=0)] | None = None
    """Unfinished jobs. Nobody said anything: `--max-jobs`."""
    max_sessions: Annotated[int, Meta(ge=1)] | None = None
    """Sessions at a time. Nobody said anything: `SESSIONS`."""
    parked_mb: Annotated[int, Meta(ge=1)] | None = None
    """Memory of parked sessions together, in megabytes. Nobody said anything: a quarter of the machine's."""
    max_slots: Annotated[int, Meta(ge=1)] | None = None
    """The most slots that its jobs hold together, of a group those of all members. Nobody said anything: all."""


class Share(Terms, frozen=True, forbid_unknown_fields=True):
    """What a user has."""

    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    quota: Annotated[int, Meta(ge=0)] = 0
    """Slots."""


class GroupShare(Share, frozen=True, forbid_unknown_fields=True):
    """What a group has, for its members to divide."""

    members: tuple[str, ...] = ()


class Shares(Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    users: dict[str, Share] = {}
    groups: dict[str, GroupShare] = {}
    default: Terms = Terms()

    @property
    def weights(self) -> dict[str, float]:
        """By name of user or group."""
        return {name: share.weight for name, share in [*self.users.items(), *self.groups.items()]}

    @property
    def quotas(self) -> dict[str, int]:
        """By name of user or group; those that have one."""
        return {name: share.quota for name, share in [*self.users.items(), *self.groups.items()] if share.quota}

    @property
    def most(self) -> Most:
        """Who may hold how many slots at most."""
        users, groups = (
            {name: share.max_slots for name, share in shares.items() if share.max_slots is not None}
            for shares in (self.users, self.groups)
        )
        return Most(users, groups, self.default.max_slots)

    def group_of(self, user: str, vouched: Collection[str] = ()) -> str:
        """The user's group: the one that names the user, else the first here among those that a Hub vouches for.

        Empty for one that stands alone.
        """
        named = (name for name, group in self.groups.items() if user in group.members)
        return next(named, "") or next((name for name in self.groups if name in vouched), "")

    def terms_of(self, user: str, vouched: Collection[str] = ()) -> Terms:
        """What each job of the user may ask for; `vouched` as in `group_of`."""
        said = (self.users.get(user), self.groups.get(self.group_of(user, vouched)), self.default)
        return Terms(
            **{
                name: next((value for terms in said if (value := getattr(terms, name, None)) is not None), None)
                for name in Terms.__struct_fields__
                if name != "max_slots"
            }
        )


INTERACTIVE_S = 600.0
"""The longest that an interactive job runs, unless the administrator says another time."""
SESSIONS = 4
"""How many sessions a user of a shared pool may have at a time, unless the administrator says otherwise."""
SESSION_S = 14_400.0
"""The longest that a cell of a session runs, unless the administrator says another `max_time_s`."""
EQUAL = Shares()
"""Everybody alike, without groups."""


class SharesFile:
    """The file, read again when it changes. One that is wrong does not count: the last one that was right does."""

    def __init__(self, path: Path) -> None:
        """BadRequest as `read_shares` says."""
        self._path = path
        self._stamp = self._now()
        self.shares = read_shares(path)

    def changed(self) -> bool:
        """Whether other shares count from now on; what is wrong with the file is logged once."""
        stamp = self._now()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            shares = read_shares(self._path)
        except BadRequest as problem:
            log.warning("%s; the shares stay what they were", problem)
            return False
        changed, self.shares = shares != self.shares, shares
        return changed

    def _now(self) -> tuple[int, int, int] | None:
        try:
            info = self._path.stat()
        except OSError:
            return None
        return info.st_mtime_ns, info.st_size, info.st_ino


def read_shares(path: Path) -> Shares:
    """The shares in a TOML file; BadRequest names the file, what is wrong and where."""
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
