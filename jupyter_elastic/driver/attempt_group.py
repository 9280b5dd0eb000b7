"""The state of one attempt's group: four small tables, the workers, the slots, and the questions about them. Pure.

Each table leads from a state by the class of an event to the next; any other move raises `UndefinedMove`. The workers'
own table is in `members`, that of a resumable cell in `restarts`. Not in a table: sets of slots, counts of deaths and
ticks, and the session's word that no worker may join.
"""

from __future__ import annotations

from enum import StrEnum

from jupyter_elastic.driver.group_actions import FormGroup, Settled
from jupyter_elastic.driver.members import Gone, Member, MemberState, ReadyInit, ReadyRun, Table
from jupyter_elastic.driver.restarts import Restarts, RestartState
from jupyter_elastic.protocol.worker_messages import CellDone, Entered, Unmet
from jupyter_elastic.types import SlotId


class AttemptEnd:
    """The attempt is given up, or was told to stop."""


class EnteredWithCallbacks:
    """A worker has come to the elastic loop with a state that has reset callbacks (`Entered`)."""


class Life(StrEnum):
    """The state of the attempt."""

    GOING = "going"
    FINISHING = "finishing"
    """A worker has ended its cell: no worker is added any more."""
    ENDED = "ended"
    """No worker is added or called."""


class RoundState(StrEnum):
    """The state of the present round."""

    NONE = "none"
    FORMING = "forming"
    BROKEN = "broken"
    """A member died, or came back to the rendezvous, before all had joined."""
    SETTLED = "settled"


class Departure(StrEnum):
    """The known reason for a member of the present round to come back to the rendezvous."""

    NONE = "none"
    ENDED = "ended"
    """A member has ended its cell: the others were left behind."""
    DIED = "died"


class LoopState(StrEnum):
    """The knowledge of the cell's elastic loop, and of who meets a joining worker's collectives before the loop."""

    FIXED = "fixed"
    HINTED = "hinted"
    """The cell's text hints at a loop."""
    ALONE = "alone"
    """A worker has come to the loop; no state has reset callbacks, so nobody meets them."""
    MET = "met"
    UNMET = "unmet"
    """A member's callbacks were observed to make none."""


_AT_LOOP = (LoopState.ALONE, LoopState.MET, LoopState.UNMET)
_COMES = {LoopState.FIXED: LoopState.ALONE, LoopState.HINTED: LoopState.ALONE, **{state: state for state in _AT_LOOP}}
LIFE = Table[Life](
    {
        CellDone: {Life.GOING: Life.FINISHING, Life.FINISHING: Life.FINISHING, Life.ENDED: Life.ENDED},
        AttemptEnd: dict.fromkeys(Life, Life.ENDED),
    }
)
_COMES_BACK = {
    RoundState.FORMING: RoundState.BROKEN,
    RoundState.BROKEN: RoundState.BROKEN,
    RoundState.SETTLED: RoundState.SETTLED,
}
ROUND = Table[RoundState](
    {
        FormGroup: dict.fromkeys(RoundState, RoundState.FORMING),
        Settled: {RoundState.FORMING: RoundState.SETTLED, RoundState.SETTLED: RoundState.SETTLED},
        ReadyInit: _COMES_BACK,
        Gone: _COMES_BACK,
    }
)
DEPARTURE = Table[Departure](
    {
        FormGroup: dict.fromkeys(Departure, Departure.NONE),
        Gone: dict.fromkeys(Departure, Departure.DIED),
        CellDone: dict.fromkeys(Departure, Departure.ENDED) | {Departure.DIED: Departure.DIED},
    }
)
LOOP = Table[LoopState](
    {
        ReadyRun: _COMES,
        Entered: _COMES,
        EnteredWithCallbacks: dict.fromkeys(LoopState, LoopState.MET) | {LoopState.UNMET: LoopState.UNMET},
        Unmet: dict.fromkeys(LoopState, LoopState.UNMET),
    }
)


class AttemptGroup:
    """The facts about an attempt's workers, slots and rounds."""

    def __init__(self, min_slots: int = 1, *, elastic: bool = False, resumable: bool = False) -> None:
        self.min_slots = min_slots
        self.kept = False
        """True if no worker may join or replace one that is gone: the lost worker had variables that no other has."""
        self.commanded: tuple[SlotId, ...] = ()
        """The slots of the scheduler's command."""
        self.wanted: tuple[SlotId, ...] = ()
        """The slots of `commanded` whose hosts are not lost and that are not refused."""
        self.lost_slots: frozenset[SlotId] = frozenset()
        """Slots whose hosts are lost, commanded or not: a later command starts no worker there."""
        self.refused: frozenset[SlotId] = frozenset()
        """Slots that stay empty because a joining worker has failed."""
        self.generation = 0
        """The number of the scheduler's command."""
        self.round = 0
        self.life = Life.GOING
        self.round_state = RoundState.NONE
        self.departure = Departure.NONE
        self.loop = LoopState.HINTED if elastic else LoopState.FIXED
        self.restarting = Restarts(resumable=resumable)
        self.workers: dict[str, Member] = {}
        """The workers whose processes live, by name, oldest first."""
        self.gone_names: set[str] = set()
        """Names of the workers whose processes are gone."""
        self.held: frozenset[SlotId] = frozenset()
        """Slots that had a worker and were not released."""
        self.called: set[str] = set()
        """Names of the members that were called since the last tick or command."""
        self.reported = 0
        """The last generation for which `Settled(complete=True)` was returned."""

    @property
    def elastic(self) -> bool:
        """True if the cell can regroup: hinted by its text at first, known once a worker waited at `run`."""
        return self.loop is not LoopState.FIXED

    @elastic.setter
    def elastic(self, hinted: bool) -> None:
        self.loop = LoopState.HINTED if hinted else LoopState.FIXED

    @property
    def resumable(self) -> bool:
        """True if a change ends all workers and forks them anew: the cell goes on from a checkpoint of its own."""
        return self.restarting.state is not RestartState.OFF

    @resumable.setter
    def resumable(self, resumable: bool) -> None:
        self.restarting = Restarts(resumable=resumable)

    @property
    def restarts(self) -> int:
        """Number of times that all workers were ended to be forked anew."""
        return self.restarting.count

    @property
    def regroups(self) -> bool:
        """True if the cell has come to `elastic.run`: from then on it can regroup."""
        return self.loop in _AT_LOOP

    @property
    def replaces(self) -> bool:
        """True if the others go on when a worker is gone."""
        return self.elastic and not self.kept

    @property
    def alone(self) -> bool:
        """True if no member meets a joining worker's collectives before `elastic.run`."""
        return self.loop is not LoopState.MET

    @property
    def finishing(self) -> bool:
        """True when a worker has ended its cell: no worker is added any more."""
        return self.life is Life.FINISHING

    @property
    def ended(self) -> bool:
        """True when the attempt is given up, or was told to stop: no worker is added or called."""
        return self.life is Life.ENDED

    @property
    def over(self) -> bool:
        """True when no worker lives and none will come."""
        return not self.workers and (self.life is not Life.GOING or not self.commanded)

    @property
    def forms(self) -> bool:
        """True while a group forms: not all its members have joined."""
        return any(worker.place == MemberState.JOINING for worker in self.workers.values())

    @property
    def living(self) -> tuple[str, ...]:
        """Names of the workers whose processes live, oldest first."""
        return tuple(self.workers)

    def needs(self, name: str) -> bool:
        """Return True if this worker is to go on: its end would be a death."""
        worker = self.workers.get(name)
        return worker is not None and not worker.out and not self.ended

    def removed(self, name: str) -> bool:
        """Return True if this worker was asked to leave, or ended because it is not wanted."""
        worker = self.workers.get(name)
        return worker is not None and worker.place == MemberState.LEAVING

    def stands(self, name: str) -> bool:
        """Return True if this worker has joined the present round and has not come back to the rendezvous."""
        worker = self.workers.get(name)
        return worker is not None and worker.round == self.round and worker.place == MemberState.JOINED

    def in_round(self, worker: Member) -> bool:
        """Return True if the worker was let into the present round."""
        return 0 < worker.round == self.round

    def members(self) -> list[Member]:
        """Return the living members of the present round that have not ended their cell and are not on the way out."""
        return [worker for worker in self.workers.values() if self.in_round(worker) and not worker.out]

    def newcomers(self) -> list[Member]:
        """Return the workers that were in no round yet."""
        return [worker for worker in self.workers.values() if not worker.round]

    def staying(self) -> list[Member]:
        """Return the members that are to stay."""
        return [worker for worker in self.members() if worker.slot in self.wanted or self.finishing]

    def left_behind(self) -> bool:
        """Return True if a group broke because a member has ended its cell: no known death explains it."""
        return self.departure is Departure.ENDED and any(worker.waits for worker in self.members())
