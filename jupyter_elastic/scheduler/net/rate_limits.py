"""Limit the requests of a user of a shared pool: rates that recover with time, and the texts of refusals.

Two rates hold for every request: the user's, and half of it for one connection, so that a script that submits without
end leaves room for the same user's notebooks. A request costs 1, and more if it is long or took long to answer. Knows
numbers and names; must not know sockets or the content of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from msgspec import Struct

BURST_S = 10.0
"""Seconds after which an empty allowance is full again."""
UNIT_BYTES = 4096
UNIT_S = 0.001
"""Bytes of a request, and seconds of the daemon's time, that cost as much as one request."""
REFUSAL = 0.25
"""Cost of a refusal to the user: a client that goes on without a pause owes more and more, and is disconnected."""
KEPT = 10_000
"""Maximum number of users whose allowance is kept; a full allowance need not be."""


class Limits(Struct, frozen=True, kw_only=True):
    """Maximum use by one user; the defaults are those of a personal pool."""

    connections: float = inf
    asks_per_s: float = inf
    unfinished: float = inf
    """Jobs that have not ended."""
    streams: float = inf
    """Streams of events of all connections together."""


SHARED = Limits(connections=200, asks_per_s=200.0, unfinished=5_000, streams=2_000)
"""Default limits of each user of a shared pool."""


class Allowance(Struct):
    """Requests that may still be made, as of `at`; a request that took long may overdraw it."""

    left: float
    at: float


class Allowances:
    """Allowances of users and connections."""

    def __init__(self, per_s: float, monotonic: Callable[[], float]) -> None:
        self.per_s = per_s
        self._monotonic = monotonic
        self._max_owed = per_s * BURST_S / 4
        self._users: dict[str, Allowance] = {}

    def new(self) -> Allowance:
        """Return the allowance of a new connection."""
        return Allowance(left=self.per_s / 2 * BURST_S, at=self._monotonic())

    def ask(self, user: str, connection: Allowance, length: int) -> float:
        """Charge a request of `length` bytes to both; return 0, or the seconds after which it may be repeated."""
        now = self._monotonic()
        mine = self._of(user, now)
        _fill(mine, self.per_s, now)
        _fill(connection, self.per_s / 2, now)
        if mine.left < 1 or connection.left < 1:
            mine.left = max(mine.left - REFUSAL, -self._max_owed - 1)
            return max((1 - mine.left) / self.per_s, (1 - connection.left) / (self.per_s / 2))
        self.spend(user, connection, 1 + length // UNIT_BYTES)
        return 0.0

    def overdrawn(self, user: str) -> bool:
        """True if the user was refused so often without a pause that no frames of theirs are to be read now."""
        found = self._users.get(user)
        if found is None:
            return False
        _fill(found, self.per_s, self._monotonic())
        return found.left < -self._max_owed

    def spend(self, user: str, connection: Allowance, cost: float) -> None:
        """Charge both with the cost of a request beyond 1."""
        self._of(user, self._monotonic()).left -= cost
        connection.left -= cost

    def _of(self, user: str, now: float) -> Allowance:
        found = self._users.get(user)
        if found is None:
            if len(self._users) >= KEPT:
                self._users = {name: one for name, one in self._users.items() if one.at > now - BURST_S}
            found = self._users[user] = Allowance(left=self.per_s * BURST_S, at=now)
        return found


def ask_admins(admins: Iterable[str]) -> str:
    """Name the administrators, who can raise a limit."""
    return f"an administrator ({', '.join(sorted(admins))}) can raise that"


def too_fast(user: str, limits: Limits, after_s: float, admins: Iterable[str]) -> str:
    """Format the refusal of requests that come too fast."""
    most = limits.asks_per_s
    return (
        f"{user} asks more than {most:g} times a second, {most / 2:g} on one connection, or what takes long; "
        f"ask again after {max(after_s, 0.1):.1f} s; {ask_admins(admins)} (--max-asks)"
    )


def too_many_connections(user: str, limits: Limits, admins: Iterable[str]) -> str:
    """Format the refusal of a connection that exceeds its user's maximum."""
    text = f"{user} has {limits.connections} connections to this pool, and no user may have more (--max-connections)"
    return f"{text}; end some; {ask_admins(admins)}"


def _fill(allowance: Allowance, per_s: float, now: float) -> None:
    allowance.left = min(allowance.left + per_s * (now - allowance.at), per_s * BURST_S)
    allowance.at = now
