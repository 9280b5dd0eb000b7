"""Whether the members of a ring still do the same: a count of what they began together, compared when one leaves.

Pure. All members begin the same collectives in the same order; one whose training function has returned begins no more
of them. Whoever begins one after that waits for it in vain, and knows so by the counts, not by time.
"""

from __future__ import annotations

from jupyter_elastic.protocol.worker import Left


class CollectiveCount:
    """One worker's count. `begin` and `leave` are called by the cell's thread, `heard` by the channel's."""

    def __init__(self) -> None:
        self._at = Left(round=0, call=0, count=0, step=0)  # replaced as a whole: two threads read it
        self._left: list[Left] = []

    @property
    def step(self) -> int:
        """The step of the last collective."""
        return self._at.step

    def joined(self, round_: int) -> None:
        """A new ring: everybody counts anew."""
        self._at = Left(round=round_, call=0, count=0, step=self._at.step)

    def begin(self, step: int) -> Left | None:
        """The next collective is begun, in this step; who has left before it."""
        now = self._at
        self._at = Left(round=now.round, call=now.call, count=now.count + 1, step=step)
        return self._behind()

    def leave(self) -> Left:
        """The training function has returned: where that was."""
        now = self._at
        self._at = Left(round=now.round, call=now.call + 1, count=0, step=now.step)
        return now

    def heard(self, leave: Left) -> Left | None:
        """Another member has left; itself if we have begun more than it."""
        self._left = [known for known in self._left if known.round == self._at.round] + [leave]
        return self._behind()

    def _behind(self) -> Left | None:
        now = self._at
        return next(
            (
                left
                for left in self._left
                if (left.round, left.call) == (now.round, now.call) and left.count < now.count
            ),
            None,
        )
