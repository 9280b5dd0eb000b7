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

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from jupyter_elastic.types.errors import BadRequest


class Terms(Struct, frozen=True, forbid_unknown_fields=True):
    """What each job of a user may ask for; None: nothing is said here."""

    priority: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """The highest priority; from 1 on jobs may also refuse to be paused. Nobody said anything: 0."""
    max_time_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """The longest running time; a job that names none has this one. Nobody said anything: any."""


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

    def group_of(self, user: str) -> str:
        """The user's group; empty for one that stands alone."""
        return next((name for name, group in self.groups.items() if user in group.members), "")

    def terms_of(self, user: str) -> Terms:
        """What the user's jobs may ask for."""
        said = (self.users.get(user), self.groups.get(self.group_of(user)), self.default)
        return Terms(
            **{
                name: next((value for terms in said if (value := getattr(terms, name, None)) is not None), None)
                for name in Terms.__struct_fields__
            }
        )


EQUAL = Shares()
"""Everybody alike, without groups."""


def read_shares(path: Path) -> Shares:
    """The shares in a TOML file; BadRequest names the file, what is wrong and where."""
    try:
        shares = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Shares)
    except (OSError, UnicodeDecodeError) as problem:
        raise BadRequest(f"--shares: {path} can't be read ({problem})") from problem
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as problem:
        raise BadRequest(f"--shares: {path}: {problem}") from problem
    both = sorted(shares.users.keys() & shares.groups.keys())
    if both:
        raise BadRequest(f"--shares: {path}: {both[0]} is the name of a user and of a group; give the group another")
    members = sorted(name for group in shares.groups.values() for name in group.members)
    twice = sorted({name for name in members if members.count(name) > 1})
    if twice:
        raise BadRequest(f"--shares: {path}: {twice[0]} is in more than one group; a user has one")
    return shares
