"""Keeps the agent's orders of one attempt that are still to be carried out: the newest of each kind. Pure."""

from __future__ import annotations

from jupyter_elastic.types import AttemptOrder, ExitReported, Launch, Rescale, SlotId, Stop


class Orders:
    """The orders that an attempt was sent, and what of them its engine was given."""

    def __init__(self, launch: Launch) -> None:
        self.stop: Stop | None = None
        self.terminated = ""
        """Why the driver ends unasked by its agent: a signal, or the end of its lease; empty while it doesn't."""
        self.rescale: Rescale | None = None
        """Not given to the engine yet."""
        self.given = launch.generation
        """The generation that the engine knows."""
        self.devices = launch.devices
        self._launch = launch
        self._generation = launch.generation
        self._held = set(launch.slots)
        """Slots on which the engine may have processes."""

    @property
    def how(self) -> str:
        """How the attempt is to stop; empty while it is to go on."""
        return self.stop.how if self.stop is not None else "preempt" if self.terminated else ""

    def is_foreign(self, order: AttemptOrder) -> bool:
        """Whether it is for another attempt, and not to be accepted."""
        return (order.job, order.attempt) != (self._launch.job, self._launch.attempt)

    def accept(self, order: AttemptOrder) -> bool:
        """Take an order; whether it changes anything. Repeats and older generations don't; a harder stop wins."""
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
        """The rescale that the engine is to be given now, and the slots that it will never know of.

        Those were granted by a generation that was overtaken, and are given back.
        """
        order, self.rescale = self.rescale, None
        if order is None:
            return None
        self.given, self.devices = order.generation, order.devices
        self._held |= set(order.slots)
        return order, tuple(slot for slot in order.draining if slot not in self._held)

    def released(self, slots: tuple[SlotId, ...]) -> None:
        """The engine has no process on these slots any more."""
        self._held -= set(slots)

    def end(self, report: ExitReported) -> tuple[str, str]:
        """Outcome and reason of the engine's end, in the light of who asked for it."""
        if report.outcome in {"cancelled", "preempted"}:
            if self.stop is not None:
                return ended_by(self.stop), report.reason or self.stop.reason
            if self.terminated:
                return "lost", self.terminated
        return report.outcome, report.reason


def ended_by(stop: Stop) -> str:
    """The outcome of an attempt that ends by this order."""
    return {"cancel": "cancelled", "preempt": "preempted", "time limit": "failed"}[stop.how]
