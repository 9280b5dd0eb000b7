"""Whether the members of a ring still do the same: a count of what they began together, compared when one leaves.

Pure. All members begin the same collectives in the same order; one whose training function has returned begins no more
of them. Whoever begins one after that waits for it in vain, and knows so by the counts, not by time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Leave:
    """A member's training function has returned, after so many collectives."""

    round: int
    """The membership of the ring."""
    call: int
    """How many training functions had returned in this round before."""
    count: int
    step: int
    """The last step for which it began one."""
    rank: int = 0


class CollectiveCount:
    """One worker's count. `begin` and `leave` are called by the cell's thread, `heard` by the pipe's."""

    def __init__(self) -> None:
        self._at = Leave(0, 0, 0, 0)  # replaced as a whole: two threads read it
        self._left: list[Leave] = []

    @property
    def step(self) -> int:
        """The step of the last collective."""
        return self._at.step

    def joined(self, round_: int) -> None:
        """A new ring: everybody counts anew."""
        self._at = Leave(round_, 0, 0, self._at.step)

    def begin(self, step: int) -> Leave | None:
        """The next collective is begun, in this step; who has left before it."""
        now = self._at
        self._at = Leave(now.round, now.call, now.count + 1, step)
        return self._behind()

    def leave(self) -> Leave:
        """The training function has returned: where that was."""
        now = self._at
        self._at = Leave(now.round, now.call + 1, 0, now.step)
        return now

    def heard(self, leave: Leave) -> Leave | None:
        """Another member has left; itself if we have begun more than it."""
        self._left = [known for known in self._left if known.round == self._at.round] + [leave]
        return self._behind()

    def _behind(self) -> Leave | None:
        now = self._at
        return next(
            (
                left
                for left in self._left
                if (left.round, left.call) == (now.round, now.call) and left.count < now.count
            ),
            None,
        )
