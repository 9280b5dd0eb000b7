"""Decides the members of the process group: a pure state machine that settles each round of the group.

Each method takes an event and returns the actions that follow; the machine knows no clock, no process and no framework.
A *round* is one membership of the group and fixes the rank order of its members; the `generation` is the number of the
scheduler's command that the round serves. One command can need several rounds, when workers die.

The states are in tables: a worker's in `members`, the group's in `attempt_group`, a resumable cell's in `restarts`. An
event in a state for which there is no row raises `UndefinedMove`, which names both. Not in a table, and told here:
which command is older than the present one, how often something may happen before the attempt is given up, and which
slots have workers.

The rules, measured in ARCHITECTURE.md:

- A round starts when every living member of the last one waits at the rendezvous, and takes in all others that wait.
- Members are called to the rendezvous only when the next round would differ from the present one, so no member waits
  for a joining worker that is not ready. The first round, and one whose members all died, waits for all wanted workers.
- Ranks go by age, workers with state first: rank 0 always has the state if any member has.
- A dead worker's slot gets a new one; the survivors go on at once when there are at least `min_slots` of them.
- Once the cell has come to `elastic.run`, a joining worker is given a *reserved* rank and the size, starts in a private
  world, and joins at its first collective or at `elastic.run`. The joining workers of a command come in together, for
  only then the reserved ranks are right. A worker whose rank becomes wrong starts over: it has shown and done nothing.
- A cell may hold several trainings. A joining worker that waits for a training that all members have finished is sent
  on alone, to the next one: it takes up what is kept of the one before.
- Collectives before `elastic.run` are met by the members' reset callbacks. If the callbacks make none, each joining
  worker makes its collectives alone: no member would ever meet them.
- A member that comes back to the rendezvous after another member has ended its cell was left behind, unless a member
  died: the news of a death may come later, so a few ticks pass before the attempt is given up.
- A joining worker that fails before it has taken a step with the others ends nothing while the others are enough: its
  slot, and those of all that came with it, stay empty until the next command. One that is killed is retried twice.
- The slots of a lost host are not wanted until it is back, are not released, and its workers' deaths are not counted.
- Calls are repeated at every tick: Horovod drops one that comes while a state is being reset.
"""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_elastic.driver import rounds
from jupyter_elastic.driver.attempt_group import (
    DEPARTURE,
    LIFE,
    LOOP,
    ROUND,
    AttemptEnd,
    AttemptGroup,
    Departure,
    EnteredWithCallbacks,
    Life,
    RoundState,
)
from jupyter_elastic.driver.group_actions import Action, Drop, GiveUp, Kill, Reason, Release
from jupyter_elastic.driver.members import FACTS, READY, TABLE, Cause, Gone, Member, MemberState, ReadyInit, ReadyRun
from jupyter_elastic.driver.restarts import RESTARTS, STEADY
from jupyter_elastic.protocol.worker_messages import CellDone, Entered, Failed, Joined, RendezvousPoint, TookPart, Unmet
from jupyter_elastic.types import SlotId

DEATHS = 10
"""Fail the attempt after `DEATHS + 2 * wanted` deaths since the last commit."""
PATIENCE = 10
"""Ticks that members of a broken join get to abort by themselves or to come back to the rendezvous."""
TRIES = 3
"""Joining workers in a row that may be killed, or groups with such that may end, before a step with the others."""


class Membership(AttemptGroup):
    """One attempt's process group. Every method takes an event and returns the actions to do, in order."""

    def __init__(self, min_slots: int = 1, *, elastic: bool = False, resumable: bool = False) -> None:
        super().__init__(min_slots, elastic=elastic, resumable=resumable)
        self.deaths = 0
        """Deaths since the last commit; for a resumable cell, deaths in a row that came soon after a restart."""
        self._misses = 0
        """Joining workers that were killed, and groups with such that ended, in a row without a step."""
        self._first_done = ""
        """The first member of the present round that has ended its cell."""
        self._broken_ticks = 0
        """Ticks since a member of the present round died, or came back to the rendezvous, before all had joined."""
        self._left_behind_ticks = 0
        """Ticks since a member came back to the rendezvous with no known reason but another member's end."""

    # events

    def want(self, generation: int, slots: Iterable[SlotId], *, anew: bool = False) -> list[Action]:
        """Take the scheduler's command: exactly these slots. A command older than the present one changes nothing.

        With `anew` the workers of a resumable cell are started anew even if the slots are the same.
        """
        if self.ended or generation < self.generation:
            return []
        before = set(self.commanded)
        self.generation, self.commanded = generation, tuple(dict.fromkeys(slots))
        idle = before - set(self.commanded) - {w.slot for w in self.workers.values()}
        self.held -= idle
        self.refused &= set(self.commanded)
        self._misses = 0
        return [*(Release(slot) for slot in sorted(idle)), *self._want(planned=True, anew=anew)]

    def lost(self, slots: Iterable[SlotId]) -> list[Action]:
        """Record that the host of these slots is lost: no worker is started there, and its workers count as gone."""
        self.lost_slots |= set(slots)
        return self._want(planned=False)

    def back(self, slots: Iterable[SlotId]) -> list[Action]:
        """Record that these slots can have workers again, and that no old worker lives there."""
        self.lost_slots -= set(slots)
        return self._want(planned=True)

    def ready(self, name: str, point: RendezvousPoint, *, has_state: bool = False, training: int = 0) -> list[Action]:
        """Record that a worker waits for its group."""
        worker = self._hear(name, READY[point])
        if worker is None:
            return []
        if self.in_round(worker):
            self._breaks(ReadyInit)  # workers that still join wait for this one in vain
        worker.has_state, worker.training = has_state, training
        self.called.discard(name)
        if point == "run":
            self._regroups_itself(ReadyRun)
        return self._decide()

    def entered(self, name: str, *, callbacks: bool = False, training: int = 0) -> list[Action]:
        """Record that a worker runs `elastic.run`: the cell can regroup. `callbacks`: its state has reset callbacks."""
        worker = self._hear(name, Entered)
        if worker is None:
            return []
        self._regroups_itself(EnteredWithCallbacks if callbacks else Entered)
        worker.early, worker.training = False, training
        return self._decide()

    def unmet(self, name: str) -> list[Action]:
        """Record that a member's callbacks made no collective: workers that joined by one wait for it in vain."""
        worker = self._hear(name, Unmet)
        if worker is None or not self.in_round(worker):
            return []
        self.loop = LOOP.after(self.loop, Unmet)
        return [*(_kill(w) for w in self.members() if w.early), *self._decide()]

    def joined(self, name: str, round_: int) -> list[Action]:
        """Record that a worker came out of `hvd.init()` of that round; nothing if the round was given up meanwhile."""
        worker = self.workers.get(name)
        if worker is not None and worker.round != round_:
            return []
        return [] if self._hear(name, Joined) is None else self._decide()

    def done(self, name: str) -> list[Action]:
        """Record that a worker's cell has ended."""
        worker = self._hear(name, CellDone)
        if worker is None:
            return []
        self.life = LIFE.after(self.life, CellDone)
        if self.departure is Departure.NONE:
            self._first_done = name
        self._explains(worker, CellDone)
        return self._decide()

    def took_part(self, name: str) -> None:
        """Record that a joining worker has taken a step with the others."""
        if (worker := self._hear(name, TookPart)) is not None:
            worker.new = False
            self._misses = 0

    def failed(self, name: str) -> list[Action]:
        """Record that a worker's cell has failed; returns no action if that is the attempt's own failure."""
        worker = self._hear(name, Failed)
        if worker is None or not worker.new:
            return []
        return [_kill(worker)] if worker.slot in self.refused else self._refuse(worker)

    def gone(self, name: str, *, by_itself: bool = False) -> list[Action]:  # noqa: PLR0911
        """Record that a worker's process is gone, for any reason; `by_itself`: it was not killed."""
        needed = self.needs(name)
        worker = self._hear(name, Gone)
        if worker is None:
            return []
        del self.workers[name]
        self.gone_names.add(name)
        self.called.discard(name)
        if not needed:
            return self._decide()
        if self.in_round(worker):
            self._breaks(Gone)
        if worker.slot in self.lost_slots | self.refused:
            self._explains(worker, Gone)
            return self._decide() if self.replaces or self.resumable else self._give_up(name, "host lost")
        if self.resumable and not self.finishing:
            self.deaths = self.deaths + 1 if self.restarting.age < STEADY else 1
            if self.deaths > RESTARTS:
                return self._give_up(name, "too often")
            return [self.restarting.restart(self.workers.values(), planned=False), *self._decide()]
        self.deaths += 1
        self._explains(worker, Gone)
        if not self.replaces:
            return self._give_up(name, "not elastic")
        if worker.slot in self.wanted and not self.finishing:
            if self.deaths > DEATHS + 2 * len(self.wanted):
                return self._give_up(name, "too often")
            if actions := self._missed(worker, TRIES if by_itself else 1):
                return actions
        return self._decide()

    def committed(self) -> None:
        """Record that the training made progress."""
        self.deaths = 0

    def end(self) -> list[Action]:
        """Add and call no worker any more; slots are released as their processes go."""
        self.life = LIFE.after(self.life, AttemptEnd)
        return self._decide()

    def tick(self) -> list[Action]:
        """Record a tick (the caller sets its length): repeat calls that were not answered."""
        self.called.clear()
        self.restarting.age += 1
        if self.left_behind():
            self._left_behind_ticks += 1
            if self._left_behind_ticks > PATIENCE:
                return self._give_up(self._first_done, "left early")
        actions = self._decide()
        if self.round_state is RoundState.BROKEN:
            self._broken_ticks += 1
            if self._broken_ticks > PATIENCE:
                actions += [_kill(w) for w in self.members() if w.place == MemberState.JOINING]
        return actions

    # consequences

    def _hear(self, name: str, cause: Cause) -> Member | None:
        """Move a worker by its table; None if nothing follows, for the worker is out or gone, or waits already."""
        worker = self.workers.get(name)
        if worker is None:
            TABLE.after(MemberState.GONE if name in self.gone_names else None, cause)
            return None
        follows = cause in FACTS and not worker.out
        return worker if worker.move(cause) or follows else None

    def _breaks(self, cause: Cause) -> None:
        """Record that a member of the present round has come back or died: a round that forms is broken by that."""
        if cause is Gone or self.round_state is not RoundState.BROKEN:
            self._broken_ticks = 0
        self.round_state = ROUND.after(self.round_state, cause)

    def _explains(self, worker: Member, cause: Cause) -> None:
        if self.in_round(worker):
            self.departure = DEPARTURE.after(self.departure, cause)

    def _give_up(self, name: str, why: Reason) -> list[Action]:
        return [GiveUp(name, why), *self.end()]

    def _regroups_itself(self, cause: Cause) -> None:
        self.loop = LOOP.after(self.loop, cause)
        self.restarting.move(Entered)

    def _want(self, *, planned: bool, anew: bool = False) -> list[Action]:
        self.wanted = tuple(slot for slot in self.commanded if slot not in self.lost_slots | self.refused)
        self.called.clear()
        living = {w.slot for w in self.workers.values() if not w.out}
        going = self.resumable and self.life is Life.GOING
        if going and living and (anew or living != set(self.wanted)):
            return [self.restarting.restart(self.workers.values(), planned=planned), *self._decide()]
        return self._decide()

    def _decide(self) -> list[Action]:
        actions: list[Action] = []
        if not self.ended:
            actions += rounds.settle(self)
            actions += rounds.dismiss(self, late=self.finishing and self.round > 0 and not self.resumable)
            actions += rounds.start_workers(self)
            actions += rounds.form_private(self)
            actions += self._start()
            actions += rounds.call(self)
        return actions + rounds.release(self)

    def _start(self) -> list[Action]:
        coming = rounds.starting(self)
        if coming is None:
            return []
        new = [w for w in self.members() if w.new] if coming else []
        if new and self.departure is not Departure.DIED and (actions := self._missed(new[0])):
            return actions
        self._left_behind_ticks = 0
        return rounds.form(self, coming)

    def _refuse(self, worker: Member) -> list[Action]:
        """Go on without this and all other joining workers, whose ranks would be wrong; not if too few are left."""
        others = [w for w in self.members() if not w.new and w.slot in self.wanted]  # leaving members don't go on
        enough = len(others) >= max(1, min(self.min_slots, len(self.commanded)))
        if not (enough and self.replaces) or self.life is not Life.GOING:
            return []
        self.refused |= set(self.commanded) - {w.slot for w in others}
        self._misses = 0
        return [Drop(worker.name, tuple(sorted(self.refused))), *self._want(planned=False)]

    def _missed(self, worker: Member, times: int = 1) -> list[Action]:
        """Count a joining worker that is gone, or whose group has ended, before a step; refuse it after a few tries."""
        self._misses += times * worker.new
        return self._refuse(worker) if worker.new and self._misses >= TRIES else []


def _kill(worker: Member) -> Kill:
    worker.move(Kill)
    return Kill(worker.name)
