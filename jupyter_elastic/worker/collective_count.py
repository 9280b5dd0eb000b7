"""Counts the collectives of a process group's members, to find one that waits for a member that has left.

Pure. All members begin the same collectives in the same order; one whose training function has returned begins no
more. A member that begins one after that waits in vain, which the counts show, not the time.
"""

from __future__ import annotations

from jupyter_elastic.protocol.worker import Left


class CollectiveCount:
    """One worker's count. `begin` and `leave` are called by the cell's thread, `member_left` by the channel's."""

    def __init__(self) -> None:
        self._at = Left(round=0, call=0, count=0, step=0)  # replaced as a whole: two threads read it
        self._left: list[Left] = []

    @property
    def step(self) -> int:
        """The step of the last collective."""
        return self._at.step

    @property
    def count(self) -> int:
        """How many collectives it has begun."""
        return self._at.count

    def joined(self, round_: int) -> None:
        """A new process group was formed: every member counts from 0."""
        self._at = Left(round=round_, call=0, count=0, step=self._at.step)

    def begin(self, step: int) -> Left | None:
        """Count a collective that begins in this step; returns the member that has left before it, if any."""
        now = self._at
        self._at = Left(round=now.round, call=now.call, count=now.count + 1, step=step)
        return self._behind()

    def leave(self) -> Left:
        """Note that the training function has returned; returns the counts to send to the others."""
        now = self._at
        self._at = Left(round=now.round, call=now.call + 1, count=0, step=now.step)
        return now

    def member_left(self, leave: Left) -> Left | None:
        """Note that another member has left; returns it if this one has begun more collectives."""
        self._left = [known for known in self._left if known.round == self._at.round] + [leave]
        return self._behind()

    def _behind(self) -> Left | None:
        now = self._at
        same_call = (left for left in self._left if (left.round, left.call) == (now.round, now.call))
        return next((left for left in same_call if left.count < now.count), None)
