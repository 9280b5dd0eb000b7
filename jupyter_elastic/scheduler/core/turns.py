"""Track whose turn it is: when users and groups began jobs, and what they used while others waited (pure).

Start-time fair queueing (Goyal, Vin & Cheng, SIGCOMM 1996) with slot-seconds as the work: a user who comes back owes no
less than the least of those present, and at most their own last job on one slot above that. Slots that nobody else
waited for do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from msgspec import Struct, field

from jupyter_elastic.types import Turn

KEPT = 32
"""Starts of each user and group that are remembered."""
REMEMBERED_S = 7 * 86_400.0
"""Seconds after the last start after which a user or group without jobs owes nothing."""


def places(group: str, owner: str) -> tuple[tuple[str, str], ...]:
    """Return the rows in which a job of this owner and group counts, each with the name that it counts for."""
    return (("", group), (group, owner)) if group else (("", owner),)


class Standing(Struct):
    """Account of a user or a group within its row."""

    unfinished: int = 0
    waiting: int = 0
    """Number of unfinished jobs that are queued."""
    held: int = 0
    begun: tuple[float, ...] = ()
    """Times at which the last jobs began, the newest last."""
    last_s: float = 0.0
    """Seconds that the job that ended last had slots."""
    alone_s: float = 0.0
    """Seconds during which nobody else in the row waited."""
    owed_s: float = 0.0
    """Slot-seconds used while another one waited, up to `counted`."""
    counted: float = 0.0


class TurnQueue(Struct):
    """Users and groups that share slots with each other: those at the top, or the members of a group."""

    all: dict[str, Standing] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    waited_s: float = 0.0
    """Seconds during which anybody waited, up to `at`."""
    at: float = 0.0

    def came(self, name: str, at: float, weights: Mapping[str, float]) -> None:
        """Count a job that this user or group has submitted."""
        one = self._now(name, at)
        if not one.unfinished:
            weight = weights.get(name, 1.0)
            others = (
                self._owed(other, at) / weights.get(its, 1.0) for its, other in self.all.items() if other.unfinished
            )
            least = weight * min(others, default=inf)
            if least < inf:
                one.owed_s = min(max(one.owed_s, least), least + one.last_s)
        one.unfinished += 1

    def moved(self, name: str, at: float, *, waiting: int, held: int, began: bool) -> Standing:
        """Add (or, if negative, subtract) waiting jobs and held slots."""
        one = self._now(name, at)
        one.waiting += waiting
        one.held += held
        if began:
            one.begun = (*one.begun[1 - KEPT :], at)
        (self.waiting.add if one.waiting else self.waiting.discard)(name)
        return one

    def turns(self, at: float) -> dict[str, Turn]:
        """Return the turns of all who have unfinished jobs, as policies see them."""
        return {
            name: Turn(begun=one.begun, owed_s=self._owed(one, at)) for name, one in self.all.items() if one.unfinished
        }

    def forget(self, at: float) -> None:
        """Drop users and groups that have had no job for `REMEMBERED_S`."""
        for name, one in list(self.all.items()):
            if not one.unfinished and (not one.begun or one.begun[-1] < at - REMEMBERED_S):
                del self.all[name]

    def _now(self, name: str, at: float) -> Standing:
        """Return the entry of `name`, counted up to `at`."""
        passed = max(at - self.at, 0.0) if self.waiting else 0.0
        self.waited_s += passed
        if len(self.waiting) == 1:
            (alone,) = self.waiting
            self.all[alone].alone_s += passed
        self.at = max(at, self.at)
        one = self.all.setdefault(name, Standing(counted=self.waited_s))
        one.owed_s, one.counted = self._owed(one, at), self.waited_s - one.alone_s
        return one

    def _owed(self, one: Standing, at: float) -> float:
        passed = max(at - self.at, 0.0) if self.waiting else 0.0
        if len(self.waiting) == 1 and self.all[next(iter(self.waiting))] is one:
            passed = 0.0
        return one.owed_s + one.held * (self.waited_s - one.alone_s + passed - one.counted)
