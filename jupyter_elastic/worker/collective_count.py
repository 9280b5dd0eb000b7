"""Counts the collectives of a process group's members, to find a member that waits for another that has left.

Pure. All members begin the same collectives in the same order; a member whose training function has returned begins no
more. A member that begins a collective after that waits in vain: the counts show it at once, without a timeout.
"""

from __future__ import annotations

from jupyter_elastic.protocol.worker_messages import Left


class CollectiveCount:
    """One worker's count. The cell's thread calls `begin` and `leave`, the channel's thread `member_left`."""

    def __init__(self) -> None:
        self._at = Left(round=0, call=0, count=0, step=0)  # replaced as a whole: two threads read it
        self._left: list[Left] = []

    @property
    def step(self) -> int:
        """The step of the last collective."""
        return self._at.step

    @property
    def count(self) -> int:
        """Number of collectives that the worker has begun."""
        return self._at.count

    def joined(self, round_: int) -> None:
        """Start from 0 for a new process group, as every member does."""
        self._at = Left(round=round_, call=0, count=0, step=self._at.step)

    def begin(self, step: int) -> Left | None:
        """Count a collective that begins in this step; return the member that has left before it, if any."""
        now = self._at
        self._at = Left(round=now.round, call=now.call, count=now.count + 1, step=step)
        return self._behind()

    def leave(self) -> Left:
        """Record that the training function has returned; return the counts to send to the others."""
        now = self._at
        self._at = Left(round=now.round, call=now.call + 1, count=0, step=now.step)
        return now

    def member_left(self, leave: Left) -> Left | None:
        """Record that another member has left; return its counts if this worker has begun more collectives."""
        self._left = [known for known in self._left if known.round == self._at.round] + [leave]
        return self._behind()

    def _behind(self) -> Left | None:
        now = self._at
        same_call = (left for left in self._left if (left.round, left.call) == (now.round, now.call))
        return next((left for left in same_call if left.count < now.count), None)
