"""Count used slot-seconds such that older use counts less (pure)."""

from __future__ import annotations

from math import exp2, expm1, log

from msgspec import Struct

HALF_LIFE_S = 7 * 86_400.0
"""Default seconds after which use counts half (Slurm's default); the policy's options may change it."""


class UsedSlots(Struct):
    """Slot-seconds that decay: those of one half-life ago count half.

    Source: Slurm's priority/multifactor (PriorityDecayHalfLife), here without its steps of five minutes.
    """

    slot_s: float
    at: float

    def add(self, slots: int, since: float, at: float, half_life_s: float) -> None:
        """Count `slots` that were held from `since` until `at`."""
        self.slot_s = self.now(at, half_life_s) + used_s(slots, at - since, half_life_s)
        self.at = at

    def now(self, at: float, half_life_s: float) -> float:
        """Return the decayed value at that time, with nothing used since."""
        return self.slot_s * exp2(-max(at - self.at, 0.0) / half_life_s)


def used_s(slots: int, passed_s: float, half_life_s: float) -> float:
    """Return the decayed slot-seconds of `slots` at the end of a time for which they were held."""
    return slots * half_life_s / log(2.0) * -expm1(-log(2.0) * max(passed_s, 0.0) / half_life_s)
