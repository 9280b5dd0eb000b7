"""A pool with leases in virtual time: daemon, agents and drivers that are killed, stopped and woken at random.

The daemon's core and its `Agents`, and the drivers' `AttemptLease`, are the real ones. Messages take up to three
seconds, and who is stopped finds them when it wakes. The kernel's part is that a driver is killed, stopped or not,
at the time that its lease says, and its workers with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, cast

from jupyter_elastic.driver.lease import GRACE_S, AttemptLease
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.agents import Agents
from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.journal.state_store import StateStore
from jupyter_elastic.scheduler.net.peers import Peer
from jupyter_elastic.scheduler.net.transport import Transport
from jupyter_elastic.scheduler.slots.leases import MARGIN_S, SAVED_S
from jupyter_elastic.types import (
    AgentChanged,
    AgentReported,
    AnyEffect,
    Cancel,
    Event,
    ExitReported,
    HostsReported,
    JobEnded,
    JobSpec,
    JobStarted,
    Launch,
    Propose,
    RunningReported,
    SlotsReleased,
    Stimulus,
    Submit,
)
from jupyter_elastic.types.errors import ElasticError
from tests.support.harness import host
from tests.support.histories import greedy
from tests.support.invariants import check

OWNERS = ("ann", "bob", "eve")
SLOTS = 4
TERM_S = 12.0
TICK_S = 0.25
RENEW_S = TERM_S / 3
DELAY_S = 3.0
BOUND_S = TERM_S + 15.0
"""From the end of all of a user's processes to the moment when their slots are free."""

AttemptId = tuple[int, int]
ProcessState = Literal["alive", "stopped", "dead"]


@dataclass
class Driver:
    """The driver of an attempt, and its workers, which live exactly as long."""

    attempt: AttemptId
    owner: str
    slots: tuple[str, ...]
    lease: AttemptLease
    state: ProcessState = "alive"
    leaves_at: float = 0.0
    """When it has ended its workers, once its lease has run out."""
    renewals: list[float] = field(default_factory=list)
    """Sent by the agent and not read yet."""


@dataclass
class Agent:
    """A user's agent. It learns of what its predecessor left from the folders, so the drivers are the world's."""

    owner: str
    state: ProcessState = "alive"
    connection: int = 0
    """0: none; it says Hello when it has a new one."""
    renew_at: float = 0.0
    mail: deque[tuple[float, Any]] = field(default_factory=deque)
    ends: set[AttemptId] = field(default_factory=set)
    """Attempts whose end it has reported."""


class World:
    """See the module. `now` is the monotonic time of the machine."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 1000.0
        self.core = Core(lease_s=TERM_S)
        self.events: list[Event] = []
        self.failing = None
        self.numbers = 0
        self.daemon: ProcessState = "alive"
        self.mail: deque[tuple[float, int, str, wire.Ask]] = deque()
        """To the daemon: when it arrives, by which connection, of whom."""
        self.connections = 0
        self.peers: dict[int, Peer] = {}
        self.by_peer: dict[Peer, Agent] = {}
        self.effects: list[AnyEffect] = []
        self.drivers: dict[AttemptId, Driver] = {}
        self.members = {owner: Agent(owner) for owner in OWNERS}
        self.agents = self.start_agents()
        self.housekeeping_at = 0.0
        self.seen: set[str] = set()
        """Users whose agent was ever connected."""
        self.stopping_since: dict[tuple[AttemptId, str], float] = {}
        """Since when the daemon has been there and an attempt was to end."""
        self.silent_since: dict[str, float] = {}
        """Since when nothing of a user lives that could renew anything."""
        self.tell(HostsReported(**self.stamp(), hosts=(host("a", SLOTS),)))
        for number in range(12):
            spec = JobSpec(name="j", folder="/j", python="/p", min_slots=1, max_slots=1 + number % 2)
            self.tell(Submit(**self.stamp(self.random.choice(OWNERS)), spec=spec))

    # --- what `Agents` needs of a store and of a transport

    def stamp(self, by: str = "daemon") -> dict[str, Any]:
        self.numbers += 1
        return {"at": self.now, "by": by, "id": str(self.numbers)}

    def report(self, stimulus: Stimulus) -> None:
        self.tell(stimulus)

    def send(self, peer: Peer, frame: bytes) -> None:
        message = wire.decode_message(frame)
        if not peer.gone and peer in self.by_peer:
            self.post(self.by_peer[peer].mail, message)

    def forget(self, peer: Peer) -> None:
        peer.gone = True
        self.peers = {number: other for number, other in self.peers.items() if other is not peer}

    def start_agents(self) -> Agents:
        return Agents(cast("StateStore", self), cast("Transport", self), lambda: self.now)

    # --- what must always hold

    def tell(self, stimulus: Stimulus) -> None:
        events, effects = self.core.step(stimulus)
        self.effects += effects
        for event in events:
            self.events.append(event)
            if isinstance(event.data, AgentChanged) and event.data.connected:
                self.seen.add(event.data.user)
            if isinstance(event.data, SlotsReleased):
                driver = self.drivers.get((event.data.job, event.data.attempt))
                assert driver is None or driver.state == "dead", f"{driver} lives, and its slots are free"
        check(self.core.state)

    def check_slots(self) -> None:
        held: dict[str, Driver] = {}
        for driver in self.living():
            for slot in driver.slots:
                assert slot not in held, f"{slot} is used by {held[slot]} and {driver}"
                held[slot] = driver

    def check_bound(self) -> None:
        """Of whom nothing lives, the slots are free in time."""
        for owner in OWNERS:
            gone = self.members[owner].state == "dead" and not any(d.owner == owner for d in self.living())
            if not gone or self.daemon != "alive":
                self.silent_since.pop(owner, None)  # a daemon that comes back has to wait for a whole term
                continue
            since = self.silent_since.setdefault(owner, self.now)
            for job in self.core.state.active_jobs():
                if job.owner == owner:
                    # Jobs of a user whose agent was never seen are started: their first submit starts it.
                    held_since = since if owner in self.seen else max(since, job.changed_at or 0.0)
                    waited_s = self.now - held_since
                    assert waited_s <= BOUND_S + DELAY_S, f"{owner} is gone for {waited_s} s, and job {job.job} holds"

    def check_stops(self) -> None:
        """Drivers here obey no stop, and live and are renewed: their slots come free all the same."""
        stopping = {((job.job, job.attempt), job.stop) for job in self.core.state.active_jobs() if job.stop}
        if self.daemon != "alive":
            stopping = set()
        self.stopping_since = {key: self.stopping_since.get(key, self.now) for key in stopping}
        for (attempt, how), since in self.stopping_since.items():
            bound_s = (SAVED_S if how == "preempt" else TERM_S) + MARGIN_S + DELAY_S
            assert self.now - since <= bound_s, f"attempt {attempt} was to end ({how}) and holds slots"

    def living(self) -> Iterable[Driver]:
        return [driver for driver in self.drivers.values() if driver.state != "dead"]

    # --- time

    def post(self, mail: deque[Any], *what: Any) -> None:
        """In order, as a connection gives it."""
        last = mail[-1][0] if mail else 0.0
        mail.append((max(last, self.now + self.random.choice((0.01, 0.01, 0.1, DELAY_S))), *what))

    def tick(self) -> None:
        self.now += TICK_S
        for driver in self.living():
            self.run_driver(driver)
        for agent in self.members.values():
            if agent.state == "alive":
                self.run_agent(agent)
        if self.daemon == "alive":
            self.run_daemon()
        self.check_slots()
        self.check_bound()
        self.check_stops()

    def run_driver(self, driver: Driver) -> None:
        if self.now >= driver.lease.killed_at:  # the kernel's timer
            driver.state = "dead"
        if driver.state != "alive":
            return
        for requested_at in driver.renewals:
            driver.lease.renew(requested_at, self.now)
        driver.renewals.clear()
        if self.now >= driver.lease.until:
            driver.leaves_at = driver.leaves_at or self.now + self.random.uniform(0, 1.5 * GRACE_S)
            if self.now >= driver.leaves_at:
                driver.state = "dead"

    def run_agent(self, agent: Agent) -> None:
        if not agent.connection:
            if self.daemon == "dead":
                return
            self.connections += 1
            agent.connection = self.connections
            self.ask(agent, wire.Hello(version=wire.VERSION, role="agent"))
        while agent.mail and agent.mail[0][0] <= self.now:
            self.hear(agent, agent.mail.popleft()[1])
        mine = [driver for driver in self.drivers.values() if driver.owner == agent.owner]
        if self.now >= agent.renew_at:
            agent.renew_at = self.now + RENEW_S
            self.renew(agent, tuple(driver.attempt for driver in mine if driver.state != "dead"))
        for driver in mine:
            if driver.state == "dead" and driver.attempt not in agent.ends:
                agent.ends.add(driver.attempt)
                self.ask(agent, wire.ReportArrived(report=self.end(driver.attempt, agent.owner)))

    def end(self, attempt: AttemptId, owner: str) -> ExitReported:
        return ExitReported(**self.stamp(owner), job=attempt[0], attempt=attempt[1], outcome="lost")

    def ask(self, agent: Agent, ask: wire.Ask) -> None:
        if agent.connection:
            self.post(self.mail, agent.connection, agent.owner, ask)

    def renew(self, agent: Agent, attempts: tuple[AttemptId, ...]) -> None:
        """The question carries its time in the first attempt, which is none: an answer is matched by it."""
        self.ask(agent, wire.RenewLeases(attempts=((0, int(self.now * 1000)), *attempts)))

    def hear(self, agent: Agent, message: Any) -> None:
        if isinstance(message, wire.OrderMessage):
            order = message.effect
            key = (order.job, order.attempt)
            if isinstance(order, Launch) and key not in self.drivers:
                self.renew(agent, (key,))
            return
        if isinstance(message, str):  # it is not taken for the user's agent (any more)
            self.ask(agent, wire.Hello(version=wire.VERSION, role="agent"))
            return
        requested_at, asked, held = message
        for attempt in asked:
            driver = self.drivers.get(attempt)
            if driver is None and attempt in held:
                slots = next(
                    event.data.slots
                    for event in self.events
                    if isinstance(event.data, JobStarted) and (event.data.job, event.data.attempt) == attempt
                )
                self.drivers[attempt] = Driver(attempt, agent.owner, slots, AttemptLease(TERM_S, requested_at))
                self.run_driver(self.drivers[attempt])
                about = {"job": attempt[0], "attempt": attempt[1], "generation": 1, "slots": slots}
                self.ask(agent, wire.ReportArrived(report=RunningReported(**self.stamp(agent.owner), **about)))
            elif driver is not None and attempt in held:
                driver.renewals.append(requested_at)
            elif driver is not None and driver.state == "alive":
                driver.state = "dead"

    def run_daemon(self) -> None:
        first = self.random.random() < 0.5  # it has slept: its clock may ring before it reads
        if first:
            self.housekeeping()
        while self.mail and self.mail[0][0] <= self.now:
            _, connection, owner, ask = self.mail.popleft()
            self.answer(connection, owner, ask)
        if not first:
            self.housekeeping()
        self.commit()

    def answer(self, connection: int, owner: str, ask: wire.Ask) -> None:
        agent = self.members[owner]
        peer = self.peers.get(connection)
        if peer is None:
            peer = self.peers[connection] = Peer(cast("Any", None), str(connection).encode(), owner)
        if agent.connection == connection:
            self.by_peer[peer] = agent
        peer.received_at = self.now
        try:
            if isinstance(ask, wire.Hello):
                self.agents.greet(peer, ask)
            elif isinstance(ask, wire.RenewLeases):
                (_, requested_at), *asked = ask.attempts
                held = self.agents.renew(peer, asked)
                if agent.connection == connection:
                    self.post(agent.mail, (requested_at / 1000, tuple(asked), held))
            elif isinstance(ask, wire.ReportArrived):
                self.agents.check_agent(peer)
                self.tell(ask.report)
        except ElasticError:
            if agent.connection == connection:
                self.post(agent.mail, "introduce yourself")
                if isinstance(ask, wire.ReportArrived):
                    agent.ends.discard((ask.report.job, ask.report.attempt))  # it says so again

    def housekeeping(self) -> None:
        if self.now < self.housekeeping_at:
            return
        self.housekeeping_at = self.now + 1.0
        self.agents.end_leases()
        self.agents.drop_silent()

    def commit(self) -> None:
        effects, self.effects = self.effects, []
        self.agents.execute(effects)
        if self.core.wants_plan:
            plan = greedy(self.core.view(self.now))
            self.tell(Propose(**self.stamp(), policy=self.core.state.policy, plan=plan))

    # --- what happens to processes

    def mishap(self) -> None:
        r = self.random
        agent = self.members[r.choice(OWNERS)]
        drivers = list(self.living())
        what = r.random()
        if what < 0.25:
            agent.state = r.choice(("alive", "stopped", "stopped", "dead")) if agent.state != "dead" else "dead"
        elif what < 0.45 and agent.state == "dead":  # its owner is back, or a driver has started another
            self.members[agent.owner] = Agent(agent.owner)
        elif what < 0.65 and drivers:
            r.choice(drivers).state = r.choice(("alive", "stopped", "stopped", "dead"))
        elif what < 0.75:  # all of a user at once
            how: ProcessState = r.choice(("stopped", "dead"))
            agent.state = "dead" if agent.state == "dead" else how
            for driver in drivers:
                if driver.owner == agent.owner:
                    driver.state = how
        elif what < 0.85:
            for other in (agent, *(driver for driver in drivers if driver.owner == agent.owner)):
                other.state = "alive" if other.state == "stopped" else other.state
        elif what < 0.9:
            self.daemon = r.choice(("alive", "stopped")) if self.daemon != "dead" else "dead"
        elif what < 0.95:
            self.kill_daemon() if self.daemon != "dead" else self.start_daemon()
        elif self.core.state.active and self.daemon == "alive":
            self.tell(Cancel(**self.stamp("ada"), job=r.choice(sorted(self.core.state.active))))
            spec = JobSpec(name="j", folder="/j", python="/p", min_slots=1, max_slots=1)
            self.tell(Submit(**self.stamp(r.choice(OWNERS)), spec=spec))

    def kill_daemon(self) -> None:
        self.daemon = "dead"
        self.mail.clear()
        self.peers.clear()
        for agent in self.members.values():
            agent.connection = 0

    def start_daemon(self) -> None:
        self.daemon = "alive"
        self.effects = []
        self.agents = self.start_agents()

    def play(self, seconds: float) -> None:
        """Mishaps, with peace now and then."""
        until = self.now + seconds
        while self.now < until:
            if self.random.random() < 0.08:
                self.mishap()
            if self.random.random() < 0.003:
                for _ in range(int(2 * BOUND_S / TICK_S)):
                    self.tick()
            self.tick()

    def calm(self) -> None:
        """Nobody but the daemon lives: all slots are free in time. Then all come back, and every job starts again."""
        if self.daemon == "dead":
            self.start_daemon()
        self.daemon = "alive"
        for process in (*self.members.values(), *self.drivers.values()):
            process.state = "dead"
        for owner in OWNERS:
            self.tell(AgentReported(**self.stamp(owner), connected=False))
        began = self.now
        while self.now < began + BOUND_S + DELAY_S:
            self.tick()
        assert not self.core.state.active, [self.core.explain(job, self.now) for job in self.core.state.active]
        self.members = {owner: Agent(owner) for owner in OWNERS}
        while self.now < began + 3 * BOUND_S:
            self.tick()
        lost = {event.data.job for event in self.events if isinstance(event.data, JobEnded)}
        assert len(self.core.state.jobs) + len(lost) == self.core.state.next_job - 1
        holding = sum(len(job.slots) for job in self.core.state.active_jobs())
        wanted = sum(job.spec.min_slots for job in self.core.state.jobs.values())
        assert holding == min(SLOTS, wanted)
        assert all(self.drivers[job.job, job.attempt].state == "alive" for job in self.core.state.active_jobs())
        assert self.drivers.keys() >= {(job.job, job.attempt) for job in self.core.state.active_jobs()}
        assert MARGIN_S > GRACE_S
