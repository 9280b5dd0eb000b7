"""What the worker halves of engines with process groups share: this worker's way into its groups and out of them.

The driver says which group is next (`rendezvous`); how its members then find each other is an engine's own affair.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from jupyter_elastic.engines.group_sockets import GroupSockets
from jupyter_elastic.protocol.worker import Entered, Go, Joined, Private, Removed, RendezvousPoint
from jupyter_elastic.training.group import PeerLost
from jupyter_elastic.types.errors import ProtocolError
from jupyter_elastic.worker.channel import interrupt_cell
from jupyter_elastic.worker.plugin import Host

_Struct = TypeVar("_Struct")


class GroupWorker:
    """The base of a `worker.plugin.WorkerPlugin`."""

    preimports: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __init__(self, host: Host) -> None:
        self.host = host
        self.channel, self.session = host.channel, host.session
        self.has_state = False
        """This worker holds what the group has learned so far."""
        self.lost_a_peer = False
        """A member died: the state went back to the last commit."""
        self.sockets = GroupSockets()
        host.channel.on_left = host.session.on_left

    def install(self) -> None:
        """Make this process ready; as it is, there is nothing to do."""

    def stay(self) -> None:
        """Let the driver free this worker from a collective, so that an interrupt reaches it."""
        self.channel.on_broken, self.channel.on_interrupt = self.sever, self._interrupt

    def _interrupt(self) -> None:
        """Leave the group with the others at the next commit, where the cell is in an elastic loop; else stop now.

        But first join where the others wait for it: in Gloo nothing would free them.
        """
        if self.in_loop or self.channel.joins:
            self.channel.update_requested.set()
            self.channel.on_update()
        else:
            interrupt_cell()

    @property
    def in_loop(self) -> bool:
        """Whether the cell is in an elastic loop, which asks at each commit whether the group is to change."""
        loop = sys.modules.get("jupyter_elastic.training.context")
        return loop is not None and loop.context.group is not None

    def end_cell(self, *, failed: bool, close: bool) -> str:  # noqa: ARG002
        """Free whoever waits for this worker; the group to form again."""
        if failed:
            self.sever()
        return ""

    def rejoin(self, group: str) -> None:
        """Form the group of the cell before again."""

    def next_cell(self, host: Host) -> None:
        """Be of the next cell's job: of no group yet."""
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
        """What the driver's half gave for this group; ProtocolError when it is nothing of this kind."""
        try:
            return msgspec.msgpack.decode(go.rendezvous, type=kind)
        except msgspec.DecodeError as problem:
            raise ProtocolError(f"the driver's word for a group is no {kind.__name__}: {problem}") from problem

    @contextlib.contextmanager
    def joining(self, go: Go) -> Iterator[None]:
        """Around the forming of a group: everybody knows this worker's new rank before, and the driver of it after."""
        self.session.collective_count.joined(go.round)
        self.host.follow(go.rank, go.size, go.place)
        with self.sockets.opening():
            yield
        self.channel.send(Joined(round=go.round))
        self.joined()

    def joined(self) -> None:
        """The group has formed: an interrupt that came meanwhile stops the cell now, or at the loop's next commit."""
        self.channel.joins = False
        if self.channel.interrupted and not self.in_loop:
            interrupt_cell()

    def entered(self, *, callbacks: bool = False) -> None:
        """The cell has come to its elastic loop."""
        self.session.say_why_it_stays()
        self.channel.send(Entered(callbacks=callbacks, training=self.session.training))

    def save(self) -> None:
        """Bring the newest commit to disk: everybody leaves. Called outside of any group."""
        self.session.to_disk()

    def sever(self) -> None:
        """Close the connections of a broken group, so that no member waits for this one; from any thread."""
        self.sockets.hang_up()


class WorkerGroup:
    """The part of a `training.group.Group` that is the same for every engine whose groups only `training` forms.

    It is the engine's `training.group.Groups` too, where one group serves every framework and its collectives raise
    `PeerLost` themselves.
    """

    elastic = True
    shards = False

    def __init__(self, worker: GroupWorker) -> None:
        self._worker = worker
        self._place: Go | Private | None = None

    def group(self, framework: str | None) -> Self:  # noqa: ARG002
        """This one, whatever the framework."""
        return self

    def formed(self) -> None:
        """A cell can't form it itself."""

    def peer_lost(self, error: BaseException) -> PeerLost | None:
        """The error itself, if it says that a member is gone."""
        return error if isinstance(error, PeerLost) else None

    def connect(self, go: Go) -> None:
        """Find the other members."""
        raise NotImplementedError

    def connect_alone(self) -> None:
        """Form a group of one, in which a newcomer takes its first step."""

    def disconnect(self) -> None:
        """Close the connections."""
        raise NotImplementedError

    @property
    def formed_by_training(self) -> bool:
        """Whether this worker is in a group that the driver has let it into."""
        return self._place is not None

    @property
    def provisional(self) -> bool:
        """Whether this worker is a newcomer in a world of its own still."""
        return isinstance(self._place, Private)

    def join(self) -> None:
        """Become a member, or a provisional one."""
        self._join("init")

    def enter(self) -> None:
        """The training begins: a provisional member joins the others, and stays one where they are past it."""
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
        """This worker has the state of the training now."""
        self._worker.has_state = True

    def lost(self) -> None:
        """A member is gone."""
        self._worker.lost_a_peer = True

    def require_whole(self) -> None:
        """Collectives raise `PeerLost` themselves."""

    def change_wanted(self) -> bool:
        """Never: the driver tells the session."""
        return False

    def wrap(self, model: Any, **options: Any) -> Any:  # noqa: ARG002
        """The model itself: its gradients are added up before the optimizer's step."""
        return model

    def rank(self) -> int:
        """This worker's number."""
        return 0 if self._place is None else self._place.rank

    def size(self) -> int:
        """Members."""
        return 1 if self._place is None else self._place.size

    def _join(self, point: RendezvousPoint) -> None:
        """Until a group has formed: one that breaks before that costs nothing but another rendezvous."""
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
