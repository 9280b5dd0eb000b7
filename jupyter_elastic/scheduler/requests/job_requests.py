"""Answer commands about jobs: submit, cancel, release and resize them.

Knows the limits and rights of their owners; must not know how the core judges them.
"""

from __future__ import annotations

import contextlib
from posixpath import normpath

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.access.shares import SESSIONS, SharesFile, Terms
from jupyter_elastic.scheduler.agents import Agents
from jupyter_elastic.scheduler.core.decide_commands import found
from jupyter_elastic.scheduler.core.rules import suitable
from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.scheduler.journal.state_store import Context, StateStore
from jupyter_elastic.scheduler.net.peers import Peer
from jupyter_elastic.scheduler.net.rate_limits import ask_admins
from jupyter_elastic.scheduler.requests.answering import REASON_CHARS, Answer, LongAnswer, answers, check_texts
from jupyter_elastic.scheduler.settings import Settings
from jupyter_elastic.types import Cancel, JobSpec, Resize, Submit
from jupyter_elastic.types.errors import BadRequest, NotAllowed, NotFound, TooMuch
from jupyter_elastic.types.texts import count

KEY_CHARS = 200
SIZES = 1_000
CANCELLED_AT_ONCE = 50
"""Jobs of one request that are cancelled before other requests are answered."""
SPEC_BYTES = 16 * 1024


@answers
def _submit(
    ask: wire.SubmitJob,
    context: Context,
    store: StateStore,
    rights: Rights,
    shares: SharesFile,
    settings: Settings,
    agents: Agents,
) -> Answer:
    if not 1 <= len(ask.key) <= KEY_CHARS:
        raise BadRequest(f"a submit key has 1 to {KEY_CHARS} characters; a fresh uuid is one")
    _check_spec(ask.spec)
    check_texts("the job", ask.spec)
    peer, user = context.peer, context.peer.user
    rights.submit(peer.caller)
    job = store.core.state.keys.get(ask.key)
    if job is None or store.core.state.owner_of(job) != user:  # the core says what is wrong with another's key
        terms = shares.shares.terms_of(user, peer.groups)
        _check_number_of_jobs(peer, terms, store, settings, rights)
        rights.ask_for(peer.caller, ask.spec, terms)
        group = shares.shares.group_of(user, peer.groups)  # nobody says himself which one is his
        rights.hold(store.core.state.needs(ask.spec), shares.shares.most.of(user, group))
        limit = ask.spec.max_time_s
        if ask.spec.interactive:
            limit = rights.wait_for(peer.caller, limit, terms)
            _check_number_of_interactive_jobs(peer, terms, store, rights)
        if ask.spec.session:
            _check_number_of_sessions(peer, ask.spec.session, terms, store, rights)
            if settings.lease_s:
                _check_devices_of_session(store.core.state, ask.spec)
        limit = rights.run_for(peer.caller, limit, terms, session=bool(ask.spec.session))
        spec = replace(ask.spec, group=group, max_time_s=limit)
        if (other := store.core.state.folders.get(normpath(spec.folder))) is not None:
            raise BadRequest(
                f"the folder {spec.folder} is that of job {other}, which is not over: give each job a folder of its own"
            )
        agents.expect(user)
        store.command(Submit(at=store.now(), by=user, id=ask.key, spec=spec, uid=context.peer.uid))
        job = store.core.state.keys.get(ask.key)
    if job is None:
        raise BadRequest("the job was not accepted; submit it with a new key")
    return wire.Submitted(job=job)


def _check_number_of_jobs(peer: Peer, terms: Terms, store: StateStore, settings: Settings, rights: Rights) -> None:
    user, said = peer.user, terms.max_jobs
    has, most = store.core.state.unfinished.get(user, 0), settings.limits.unfinished if said is None else said
    if has >= most and not rights.is_admin(peer.caller):
        by = "--max-jobs" if said is None else "`max_jobs` in the file of shares"
        raise TooMuch(
            f"{user} has {has:,} unfinished jobs, and may have no more on this pool ({by}); "
            f"submit again when some have ended, or cancel some; {ask_admins(rights.admins)}"
        )


def _check_number_of_interactive_jobs(peer: Peer, terms: Terms, store: StateStore, rights: Rights) -> None:
    user, state, most = peer.user, store.core.state, terms.interactive_jobs or 1
    mine = sorted(job for job in state.interactive if state.jobs[job].owner == user)
    if len(mine) >= most and not rights.is_admin(peer.caller):
        raise TooMuch(
            f"{user} has {count(len(mine), 'interactive job')} ({', '.join(map(str, mine))}), and may have no more at "
            "a time (`interactive_jobs` in the file of shares): wait for the end of one, cancel it, or leave "
            f"--interactive out; {ask_admins(rights.admins)}"
        )


def _check_number_of_sessions(peer: Peer, session: str, terms: Terms, store: StateStore, rights: Rights) -> None:
    """Count sessions with unfinished cells; the user's agent counts suspended ones."""
    user, state, most = peer.user, store.core.state, terms.max_sessions or SESSIONS
    cells = (state.jobs[job] for job in state.in_sessions)
    names = sorted({cell.spec.session for cell in cells if cell.owner == user} - {session})
    if len(names) >= most and not rights.is_admin(peer.caller):
        raise TooMuch(
            f"cells of {user} wait or run in {count(len(names), 'session')} ({', '.join(names)}), and {user} may have "
            "no more at a time (`max_sessions` in the file of shares): wait for their end, or cancel them; "
            f"{ask_admins(rights.admins)}"
        )


def _check_devices_of_session(state: State, spec: JobSpec) -> None:
    """NotAllowed where a session's cell could get GPUs only, which its driver would refuse after all the waiting."""
    at = state.bound_to(spec)
    hosts = [host for host in state.hosts if at in {"", host.name} and suitable.matches(host.labels, spec)]
    slots = [slot for host in hosts for slot in host.slots if not slot.for_servers]
    if slots and all(slot.device for slot in slots):
        raise NotAllowed(
            "sessions are not for the GPUs of a shared pool so far, and this cell could get no other slots: "
            "run it without --session"
        )


def _check_spec(spec: JobSpec) -> None:
    if not spec.folder.startswith("/") or "\0" in spec.folder:
        raise BadRequest(f"the job's folder must be an absolute path, not {spec.folder[:200]!r}")
    _check_sizes(spec.sizes)
    length = len(msgspec.msgpack.encode(spec))
    if length > SPEC_BYTES:
        raise BadRequest(f"this job's spec takes {length:,} bytes, {SPEC_BYTES:,} are allowed; shorten its paths")


def _check_sizes(sizes: tuple[int, ...]) -> None:
    if len(sizes) > SIZES:
        raise BadRequest(f"a job may name {SIZES} sizes at most; leave them out to allow all")


@answers
def _cancel(ask: wire.CancelJob, context: Context, rights: Rights, store: StateStore) -> Answer:
    rights.change_job(context.peer.caller, found(store.core.state, ask.job).owner, ask.job)
    reason = ask.reason[:REASON_CHARS]
    store.command(Cancel(**store.stamp(context.peer.user), job=ask.job, reason=reason))
    return wire.Done()


@answers
def _cancel_many(ask: wire.CancelJobs, context: Context, store: StateStore, rights: Rights) -> LongAnswer:
    state = store.core.state
    theirs = [number for number, job in state.jobs.items() if job.owner == ask.owner]
    jobs = tuple(dict.fromkeys([*ask.jobs, *theirs]))
    for job in jobs:
        rights.change_job(context.peer.caller, found(state, job).owner, job)
    for number, job in enumerate(jobs, 1):
        with contextlib.suppress(NotFound):  # forgotten meanwhile
            stamp = store.stamp(context.peer.user)
            store.command(Cancel(**stamp, job=job, reason=ask.reason[:REASON_CHARS]))
        if not number % CANCELLED_AT_ONCE:
            yield
    yield
    return wire.Cancelled(jobs=jobs)


@answers
def _release(ask: wire.ReleaseJob, context: Context, rights: Rights, store: StateStore, agents: Agents) -> Answer:
    rights.release_job(context.peer.caller, ask.job)
    job, reason = found(store.core.state, ask.job), ask.reason[:REASON_CHARS]
    agents.release(job, context.peer.user, reason, force=ask.force)
    return wire.Done()


@answers
def _resize(ask: wire.ResizeJob, context: Context, store: StateStore, rights: Rights, shares: SharesFile) -> Answer:
    job = found(store.core.state, ask.job)
    rights.change_job(context.peer.caller, job.owner, ask.job)
    if ask.preemptible is False:
        spec = replace(job.spec, preemptible=False)
        terms = shares.shares.terms_of(context.peer.user, context.peer.groups)
        rights.ask_for(context.peer.caller, spec, terms)
    numbers = [number for number in (ask.min_slots, ask.max_slots) if number is not UNSET]
    if ask.sizes is not UNSET:
        _check_sizes(ask.sizes)
        numbers += ask.sizes
    if any(not 1 <= number <= 100_000 for number in numbers):
        raise BadRequest("a job can hold 1 to 100000 slots; write min:max with 1 <= min <= max")
    least = 0 if ask.min_slots is UNSET else ask.min_slots
    smallest = 0 if ask.sizes is UNSET else min(ask.sizes, default=0)
    rights.hold(max(least, smallest), shares.shares.most.of(job.owner, job.spec.group))
    store.command(Resize(**store.stamp(context.peer.user), job=ask.job, change=ask))
    return wire.Done()
