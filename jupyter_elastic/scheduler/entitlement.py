"""What each user is entitled to at a moment, so that it can be said what was borrowed and what was lent. Pure.

The rule is that of the policy `fair`, whatever policy decides: quotas are everybody's own, whether their owner is there
or not; the other slots belong to those who have unfinished jobs, by weight, so that nobody who is there has less than
another for the same weight but by a quota. Groups first, then the users of each in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeVar

from jupyter_elastic.types import SharesChanged

_K = TypeVar("_K")
Account: TypeAlias = tuple[str, str]
"""A user and its group. Without group: one that stands alone. Without user: what is a group's and no member's."""


def entitlements(capacity: int, present: Iterable[Account], shares: SharesChanged) -> dict[Account, float]:
    """Slots of each account; together all slots while anybody is there, who has unfinished jobs.

    Quotas that are together more than there is count in proportion.
    """
    users: defaultdict[Account, list[str]] = defaultdict(list)
    """Who is there, by what shares with others at the top: a group, or a user that stands alone."""
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
    """The part of each that is there (has a weight) or has a quota.

    Each has its quota. Beyond that all who are there have as much for their weight, but those whose quota is more.
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
