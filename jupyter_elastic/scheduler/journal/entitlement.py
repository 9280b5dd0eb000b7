"""Compute the slots that each user is entitled to at a moment, to tell borrowed slots from lent ones. Pure.

The rule is that of the policy `fair`, whatever policy decides: quotas are reserved for their owners, with or without
jobs; users with unfinished jobs share the rest by weight, so that none has less than another for the same weight except
through a quota. Groups come first, then the users of each in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeVar

from jupyter_elastic.types import SharesChanged

_K = TypeVar("_K")
Account: TypeAlias = tuple[str, str]
"""(user, group). Without group: a user who has none. Without user: slots of a group and of no member."""


def entitlements(capacity: int, present: Iterable[Account], shares: SharesChanged) -> dict[Account, float]:
    """Return the slots of each account; together all slots while a user has unfinished jobs.

    Quotas that together exceed the capacity count in proportion.
    """
    users: defaultdict[Account, list[str]] = defaultdict(list)
    """Users with jobs, by the account that shares at the top: a group, or a user without group."""
    for user, group in present:
        users["" if group else user, group].append(user)
    weights = {top: shares.weights.get(top[1] or top[0], 1.0) for top in users}
    members = {user for names in shares.groups.values() for user in names}
    quotas = {
        ("", name) if name in shares.groups else (name, ""): quota
        for name, quota in shares.quotas.items()
        if name not in members
    }
    found: dict[Account, float] = {}
    for top, slots in divided(capacity, weights, quotas).items():
        group = top[1]
        if not group:
            found[top] = slots
            continue
        within = {user: shares.weights.get(user, 1.0) for user in users[top]}
        own = {user: shares.quotas.get(user, 0) for user in (*shares.groups.get(group, ()), *within)}
        parts = divided(slots, within, own)
        found |= {(user, group): part for user, part in parts.items()}
        if not within:
            found[top] = slots - sum(parts.values())
    return found


def divided(total: float, weights: Mapping[_K, float], quotas: Mapping[_K, float]) -> dict[_K, float]:
    """Divide `total` among those that have a weight (are present) or a quota.

    Each gets its quota. Beyond that all present ones get equal slots per weight, except those with a larger quota.
    """
    promised = sum(quotas.values())
    scale = min(1.0, total / promised) if promised else 1.0
    found = {name: quota * scale for name, quota in quotas.items()}
    left = dict(weights)
    free = total - sum(part for name, part in found.items() if name not in left)
    while left:
        level = max(free, 0.0) / sum(left.values())  # below 0 by rounding alone
        above = [name for name, weight in left.items() if found.get(name, 0.0) > level * weight]
        if not above:
            return found | {name: level * weight for name, weight in left.items()}
        for name in above:
            free -= found[name]
            del left[name]
    return found
