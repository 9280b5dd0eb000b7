"""Keeps the agent's pending orders for one attempt: the newest of each kind. Pure."""

from __future__ import annotations

from jupyter_elastic.types import AttemptOrder, ExitReported, Launch, Rescale, SlotId, Stop


class Orders:
    """The orders that an attempt was sent, and those of them that its engine was given."""

    def __init__(self, launch: Launch) -> None:
        self.stop: Stop | None = None
        self.terminated = ""
        """Why the driver ends without an order: a signal, or the end of its lease; empty while it goes on."""
        self.rescale: Rescale | None = None
        """A rescale that was not given to the engine yet."""
        self.given = launch.generation
        """The generation that the engine knows."""
        self.devices = launch.devices
        self._launch = launch
        self._generation = launch.generation
        self._held = set(launch.slots)
        """Slots on which the engine may have processes."""

    @property
    def how(self) -> str:
        """`how` of the stop that the attempt is to make; empty while it is to go on."""
        return self.stop.how if self.stop is not None else "preempt" if self.terminated else ""

    def is_foreign(self, order: AttemptOrder) -> bool:
        """Return True if the order is for another attempt and must not be accepted."""
        return (order.job, order.attempt) != (self._launch.job, self._launch.attempt)

    def accept(self, order: AttemptOrder) -> bool:
        """Accept an order; return True if it changes anything (no repeat, no older generation). A harder stop wins."""
        if isinstance(order, Stop):
            if self.stop is not None and (self.stop.how != "preempt" or order.how == "preempt"):
                return False
            self.stop = order
            return True
        if order.generation <= self._generation or self.stop is not None:
            return False
        if isinstance(order, Launch):
            names = Rescale.__struct_fields__
            order = Rescale(**{name: getattr(order, name) for name in names if hasattr(order, name)})
        self._generation, self.rescale = order.generation, order
        return True

    def take(self) -> tuple[Rescale, tuple[SlotId, ...]] | None:
        """Return the rescale to give to the engine now, and the slots that the engine will never know of.

        A generation that was overtaken had granted those slots; they are given back.
        """
        order, self.rescale = self.rescale, None
        if order is None:
            return None
        self.given, self.devices = order.generation, order.devices
        self._held |= set(order.slots)
        return order, tuple(slot for slot in order.draining if slot not in self._held)

    def released(self, slots: tuple[SlotId, ...]) -> None:
        """Record that the engine has no process on these slots any more."""
        self._held -= set(slots)

    def end(self, report: ExitReported) -> tuple[str, str]:
        """Return outcome and reason of the engine's end, corrected by the order or signal that caused it."""
        if report.outcome in {"cancelled", "preempted"}:
            if self.stop is not None:
                return ended_by(self.stop), report.reason or self.stop.reason
            if self.terminated:
                return "lost", self.terminated
        return report.outcome, report.reason


def ended_by(stop: Stop) -> str:
    """Return the outcome of an attempt that ends by this order."""
    return {"cancel": "cancelled", "preempt": "preempted", "time limit": "failed"}[stop.how]
