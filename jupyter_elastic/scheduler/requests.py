"""Answers what peers ask: checks it, turns a command into a stimulus, and reads the books for the rest.

Knows asks, rights and the core; must not know sockets, threads or the disk: how a stimulus is carried out and made
lasting is the daemon's business.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from jupyter_elastic._version import __version__
from jupyter_elastic.errors import BadRequest, NotAllowed, ProtocolError
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler import plugins
from jupyter_elastic.scheduler.auth import Rights
from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.shares import Shares
from jupyter_elastic.scheduler.transport import Peer
from jupyter_elastic.types import (
    ACTIVE,
    Cancel,
    JobInfo,
    JobSpec,
    ProgressReported,
    Resize,
    Stimulus,
    Submit,
    UsePolicy,
)

KEY_CHARS = 200
REASON_CHARS = 1_000
VIEW_JOBS = 2000
OPTION_BYTES = 16 * 1024
SIZES = 1_000
METRICS = 100


class House(Protocol):
    """What the desk needs of the daemon behind it."""

    core: Core
    rights: Rights
    shares: Shares
    pool: str
    started_at: float

    def now(self) -> float:
        """Wall time."""
        ...

    def next_id(self) -> str:
        """A new id for a stimulus."""
        ...

    def command(self, stimulus: Stimulus) -> None:
        """Carry out a command; its answer goes out when it is on disk. Raises what the core raises, or JournalError."""
        ...

    def observe(self, stimulus: Stimulus) -> None:
        """Take in a report; its answer goes out when it is on disk."""
        ...

    def greet(self, peer: Peer, hello: wire.Hello) -> None:
        """An agent is there: it gets its orders from now on. NotAllowed when another one is the user's agent."""
        ...

    def follow(self, peer: Peer, ask: wire.Follow) -> wire.Following:
        """Send events to the peer."""
        ...

    def unfollow(self, peer: Peer, stream: int) -> None:
        """Send it no more events."""
        ...

    def stop(self) -> None:
        """End the daemon after this answer."""
        ...

    def switch_policy(self, stimulus: UsePolicy) -> None:
        """Carry out this command if the policy can be made; NotFound or BadRequest when not."""
        ...


def answer(house: House, peer: Peer, ask: wire.AnyAsk) -> wire.AnyAnswer:
    """The answer to an ask; an ElasticError where it is refused."""
    case = _CASES[type(ask)]
    found: wire.AnyAnswer = case(house, peer, ask)
    return found


def _hello(house: House, peer: Peer, ask: wire.Hello) -> wire.AnyAnswer:
    if ask.version != wire.VERSION:
        raise ProtocolError(
            f"you speak protocol {ask.version}, this daemon (jupyter-elastic {__version__}) {wire.VERSION}: "
            "install the same version on both sides, then restart the daemon"
        )
    if ask.role == "agent":
        house.greet(peer, ask)
    elif ask.role != "client":
        raise BadRequest(f"there is no role {ask.role[:50]!r}; there are agent and client")
    state = house.core.state
    return wire.Welcome(
        version=wire.VERSION,
        package=__version__,
        user=peer.user,
        pool=house.pool,
        seq=state.seq,
        policy=state.policy,
        started_at=house.started_at,
        pid=os.getpid(),
    )


def _submit(house: House, peer: Peer, ask: wire.SubmitJob) -> wire.AnyAnswer:
    if not 1 <= len(ask.key) <= KEY_CHARS:
        raise BadRequest(f"a submit key has 1 to {KEY_CHARS} characters; a fresh uuid is one")
    _check_spec(ask.spec)
    job = house.core.submitted(ask.key)
    if job is None or house.core.state.owner_of(job) != peer.user:  # the core says what is wrong with another's key
        spec = replace(ask.spec, group=house.shares.group_of(peer.user))  # nobody says himself which one is his
        house.command(Submit(at=house.now(), by=peer.user, id=ask.key, spec=spec))
        job = house.core.submitted(ask.key)
    if job is None:
        raise BadRequest("the job was not accepted; submit it with a new key")
    return wire.Submitted(job=job)


def _check_spec(spec: JobSpec) -> None:
    if not spec.folder.startswith("/") or "\0" in spec.folder:
        raise BadRequest(f"the job's folder must be an absolute path, not {spec.folder[:200]!r}")
    _check_sizes(spec.sizes)


def _check_sizes(sizes: tuple[int, ...]) -> None:
    if len(sizes) > SIZES:
        raise BadRequest(f"a job may name {SIZES} sizes at most; leave them out to allow all")


def _cancel(house: House, peer: Peer, ask: wire.CancelJob) -> wire.AnyAnswer:
    house.rights.change_job(peer.user, house.core.state.owner_of(ask.job), ask.job)
    reason = ask.reason[:REASON_CHARS]
    house.command(Cancel(at=house.now(), by=peer.user, id=house.next_id(), job=ask.job, reason=reason))
    return wire.Done()


def _resize(house: House, peer: Peer, ask: wire.ResizeJob) -> wire.AnyAnswer:
    house.rights.change_job(peer.user, house.core.state.owner_of(ask.job), ask.job)
    numbers = [number for number in (ask.min_slots, ask.max_slots) if number is not UNSET]
    if ask.sizes is not UNSET:
        _check_sizes(ask.sizes)
        numbers += ask.sizes
    if any(not 1 <= number <= 100_000 for number in numbers):
        raise BadRequest("a job can hold 1 to 100000 slots; write min:max with 1 <= min <= max")
    house.command(
        Resize(
            at=house.now(),
            by=peer.user,
            id=house.next_id(),
            job=ask.job,
            min_slots=ask.min_slots,
            max_slots=ask.max_slots,
            sizes=ask.sizes,
            preemptible=ask.preemptible,
            deadline_at=ask.deadline_at,
        )
    )
    return wire.Done()


def _list_jobs(house: House, peer: Peer, ask: wire.ListJobs) -> wire.AnyAnswer:
    limit = min(max(ask.limit, 1), 3_000)  # what surely fits into a frame
    found = house.core.jobs(all=ask.all, job=ask.job, limit=limit)
    if len(found) > limit:  # those with slots are always shown, then the newest
        active = [info for info in found if info.phase in ACTIVE][:limit]
        others = [info for info in found if info.phase not in ACTIVE]
        found = sorted([*active, *others[len(others) - (limit - len(active)) :]], key=lambda info: info.job)
    shown = tuple(_for_eyes_of(house, peer.user, info) for info in found)
    while len(shown) > 1 and len(msgspec.msgpack.encode(shown)) > wire.MAX_FRAME - 1024:
        shown = shown[len(shown) // 2 :]
    return wire.Jobs(jobs=shown, seq=house.core.state.seq)


def _for_eyes_of(house: House, user: str, info: JobInfo) -> JobInfo:
    if info.progress is None or house.rights.sees_progress(user, info.owner):
        return info
    return replace(info, progress=None)


def _list_hosts(house: House, _peer: Peer, _ask: wire.ListHosts) -> wire.AnyAnswer:
    state = house.core.state
    kind = "gpu" if any(host.kind == "gpu" for host in state.hosts) else "cpu"
    return wire.Hosts(slots=tuple(house.core.slots()), kind=kind, seq=state.seq)


def _list_policies(house: House, peer: Peer, _ask: wire.ListPolicies) -> wire.AnyAnswer:
    state, refusal = house.core.state, ""
    try:
        house.rights.switch_policy(peer.user, source=False)
    except NotAllowed as problem:
        refusal = str(problem)
    return wire.Policies(policies=plugins.policy_infos(state.policy, state.policy_options), refusal=refusal)


def _read_view(house: House, _peer: Peer, _ask: wire.ReadView) -> wire.AnyAnswer:
    """A what-if of more jobs than this is no longer read by anybody, and its view must fit into a frame."""
    state, view = house.core.state, house.core.view(house.now())
    near = replace(view, jobs=view.jobs[:VIEW_JOBS], memo=None)
    return wire.PoolView(view=near, policy=state.policy, options=state.policy_options)


def _switch_policy(house: House, peer: Peer, ask: wire.SwitchPolicy) -> wire.AnyAnswer:
    house.rights.switch_policy(peer.user, source=bool(ask.source))
    if not 1 <= len(ask.name) <= 200 or len(ask.source) > 100_000:
        raise BadRequest("a policy's name has 1 to 200 characters, its source at most 100,000")
    if len(msgspec.json.encode(ask.options)) > OPTION_BYTES:
        raise BadRequest(f"a policy's options may take {OPTION_BYTES:,} bytes as JSON at most")
    house.switch_policy(
        UsePolicy(
            at=house.now(),
            by=peer.user,
            id=house.next_id(),
            name=ask.name,
            options=ask.options,
            reason=ask.reason[:REASON_CHARS],
            source=ask.source,
        )
    )
    return wire.Done()


def _explain(house: House, _peer: Peer, ask: wire.ExplainJob) -> wire.AnyAnswer:
    now = house.now()
    return wire.Explanation(text=house.core.explain(ask.job, now), until=house.core.until(ask.job, now))


def _follow(house: House, peer: Peer, ask: wire.Follow) -> wire.AnyAnswer:
    return house.follow(peer, ask)


def _unfollow(house: House, peer: Peer, ask: wire.Unfollow) -> wire.AnyAnswer:
    house.unfollow(peer, ask.stream)
    return wire.Done()


def _report(house: House, peer: Peer, ask: wire.ReportArrived) -> wire.AnyAnswer:
    """Who and when are ours to say: a stranger's clock in the books would stop them for ever."""
    seen = ask.seen
    house.rights.report(peer.user, house.core.state.owner_of(seen.job), seen.job)
    if peer.role != "agent":
        raise NotAllowed("only the user's agent reports; say Hello with role agent first")
    if isinstance(seen, ProgressReported) and len(seen.progress.metrics) > METRICS:
        raise BadRequest(f"a report may hold {METRICS} metrics at most")
    house.observe(replace(seen, at=house.now(), by=peer.user, id=house.next_id()))
    return wire.Done()


def _ping(_house: House, _peer: Peer, _ask: wire.Ping) -> wire.AnyAnswer:
    return wire.Done()


def _shutdown(house: House, peer: Peer, _ask: wire.Shutdown) -> wire.AnyAnswer:
    house.rights.shut_down(peer.user)
    house.stop()
    return wire.Done()


_CASES: dict[type[wire.Ask], Any] = {
    wire.Hello: _hello,
    wire.SubmitJob: _submit,
    wire.CancelJob: _cancel,
    wire.ResizeJob: _resize,
    wire.ListJobs: _list_jobs,
    wire.ListHosts: _list_hosts,
    wire.ListPolicies: _list_policies,
    wire.ReadView: _read_view,
    wire.SwitchPolicy: _switch_policy,
    wire.ExplainJob: _explain,
    wire.Follow: _follow,
    wire.Unfollow: _unfollow,
    wire.ReportArrived: _report,
    wire.Ping: _ping,
    wire.Shutdown: _shutdown,
}
