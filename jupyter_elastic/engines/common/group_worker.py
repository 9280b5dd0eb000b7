"""The common base of the worker halves of group engines: brings this worker into its groups and out of them.

The driver sends the next group (`rendezvous`); the derived engine decides how its members then find each other.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from jupyter_elastic.engines.common.group_sockets import GroupSockets
from jupyter_elastic.protocol.worker_messages import Entered, Go, Joined, Private, Removed, RendezvousPoint
from jupyter_elastic.training.group import PeerLost
from jupyter_elastic.types.errors import ProtocolError
from jupyter_elastic.worker.channel import interrupt_cell
from jupyter_elastic.worker.plugin import WorkerFacilities

_Struct = TypeVar("_Struct")


class GroupWorker:
    """The base of a `worker.plugin.WorkerPlugin`."""

    preimports: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __init__(self, host: WorkerFacilities) -> None:
        self.host = host
        self.channel, self.session = host.channel, host.session
        self.has_state = False
        """True if this worker holds what the group has learned so far."""
        self.lost_a_peer = False
        """True if a member died: the state went back to the last commit."""
        self.sockets = GroupSockets()
        host.channel.on_left = host.session.on_left

    def install(self) -> None:
        """Prepare this process; the base does nothing."""

    def stay(self) -> None:
        """Let the driver free this worker from a collective, so that an interrupt reaches it."""
        self.channel.on_broken, self.channel.on_interrupt = self.sever, self._interrupt

    def _interrupt(self) -> None:
        """Leave the group with the others at the next commit, if the cell is in an elastic loop; else stop now.

        But first join if the others wait for this worker: in Gloo nothing would free them.
        """
        if self.in_loop or self.channel.joins:
            self.channel.update_requested.set()
            self.channel.on_update()
        else:
            interrupt_cell()

    @property
    def in_loop(self) -> bool:
        """True while the cell is in an elastic loop, which asks at each commit if the group is to change."""
        loop = sys.modules.get("jupyter_elastic.training.context")
        return loop is not None and loop.context.group is not None

    def end_cell(self, *, failed: bool, close: bool) -> str:  # noqa: ARG002
        """Free the members that wait for this worker; return the group to form again."""
        if failed:
            self.sever()
        return ""

    def rejoin(self, group: str) -> None:
        """Form the group of the previous cell again."""

    def next_cell(self, host: WorkerFacilities) -> None:
        """Prepare for the next cell's job, in no group yet."""
        self.host = host
        self.channel, self.session = host.channel, host.session
        self.has_state = self.lost_a_peer = False
        host.channel.on_left, host.channel.on_broken = host.session.on_left, self.sever
        host.channel.on_interrupt = self._interrupt

    def rendezvous(self, point: RendezvousPoint) -> Go | Private:
        """Wait until the driver has the next group; a worker that is not in it ends here."""
        if self.lost_a_peer:
            self.sever()
            self.lost_a_peer = False
        answer = self.channel.rendezvous(point, has_state=self.has_state, training=self.session.training)
        if isinstance(answer, Removed):
            if answer.keep and self.has_state:
                self.save()
            self.host.exit_removed()
        return answer

    def decoded(self, go: Go, kind: type[_Struct]) -> _Struct:
        """Return what the driver's half sent for this group; ProtocolError when it is not of this kind."""
        try:
            return msgspec.msgpack.decode(go.rendezvous, type=kind)
        except msgspec.DecodeError as problem:
            raise ProtocolError(f"the driver's word for a group is no {kind.__name__}: {problem}") from problem

    @contextlib.contextmanager
    def joining(self, go: Go) -> Iterator[None]:
        """Wrap the forming of a group: set this worker's new rank everywhere before, and tell the driver after."""
        self.session.collective_count.joined(go.round)
        self.host.follow(go.rank, go.size, go.place)
        with self.sockets.opening():
            yield
        self.channel.send(Joined(round=go.round))
        self.joined()

    def joined(self) -> None:
        """Handle an interrupt that came while the group formed: stop the cell now, or at the loop's next commit."""
        self.channel.joins = False
        if self.channel.interrupted and not self.in_loop:
            interrupt_cell()

    def entered(self, *, callbacks: bool = False) -> None:
        """Record that the cell has come to its elastic loop."""
        self.session.say_why_it_stays()
        self.channel.send(Entered(callbacks=callbacks, training=self.session.training))

    def save(self) -> None:
        """Bring the newest commit to disk, as all members leave. Called outside of any group."""
        self.session.to_disk()

    def sever(self) -> None:
        """Close the connections of a broken group, so that no member waits for this one; from any thread."""
        self.sockets.hang_up()


class WorkerGroup:
    """The common part of `training.group.Group` for engines whose groups only `training` forms.

    It is the engine's `training.group.Groups` too, if one group serves every framework and its collectives raise
    `PeerLost` themselves.
    """

    elastic = True
    shards = False

    def __init__(self, worker: GroupWorker) -> None:
        self._worker = worker
        self._place: Go | Private | None = None

    def group(self, framework: str | None) -> Self:  # noqa: ARG002
        """Return this group, whatever the framework."""
        return self

    def formed(self) -> None:
        """Do nothing: a cell can't form this group itself."""

    def peer_lost(self, error: BaseException) -> PeerLost | None:
        """Return the error itself, if it means that a member is gone."""
        return error if isinstance(error, PeerLost) else None

    def connect(self, go: Go) -> None:
        """Connect to the other members."""
        raise NotImplementedError

    def connect_alone(self) -> None:
        """Form a group of one, in which a joining worker takes its first step."""

    def disconnect(self) -> None:
        """Close the connections."""
        raise NotImplementedError

    @property
    def formed_by_training(self) -> bool:
        """True if this worker is in a group that the driver has let it into."""
        return self._place is not None

    @property
    def provisional(self) -> bool:
        """True while this worker is still in a world of its own, before it joins."""
        return isinstance(self._place, Private)

    def join(self) -> None:
        """Become a member, or a provisional one."""
        self._join("init")

    def enter(self) -> None:
        """Begin the training: a provisional member joins the others, and stays provisional if they are past it."""
        if self.provisional:
            self.leave()
            self._join("run")
        if self.provisional:
            return
        self._worker.entered()

    def leave(self) -> None:
        """Leave the group."""
        self.disconnect()
        self._place = None

    def synced(self) -> None:
        """Record that this worker has the state of the training now."""
        self._worker.has_state = True

    def lost(self) -> None:
        """Record that a member is gone."""
        self._worker.lost_a_peer = True

    def require_whole(self) -> None:
        """Do nothing: collectives raise `PeerLost` themselves."""

    def change_wanted(self) -> bool:
        """Return False: the driver tells the session."""
        return False

    def wrap(self, model: Any, **options: Any) -> Any:  # noqa: ARG002
        """Return the model itself: its gradients are added up before the optimizer's step."""
        return model

    def rank(self) -> int:
        """Return this worker's rank."""
        return 0 if self._place is None else self._place.rank

    def size(self) -> int:
        """Return the number of members."""
        return 1 if self._place is None else self._place.size

    def _join(self, point: RendezvousPoint) -> None:
        """Try until a group has formed: a group that breaks before costs nothing but another rendezvous."""
        while self._place is None:
            try:
                self._take(self._worker.rendezvous(point))
            except PeerLost:
                self.lost()
                self.leave()
                point = "init"
            except BaseException:  # an interrupt: this group was never formed
                self.leave()
                raise

    def _take(self, place: Go | Private) -> None:
        self._place = place
        if isinstance(place, Private):
            self._worker.host.expect(place.rank, place.size)
            self.connect_alone()
            return
        with self._worker.joining(place):
            self.connect(place)
