"""Decides who is started, let into a round, called and sent away, and which slots are released. Pure.

A *round* is one membership of the group and fixes the rank order of its members. Each function takes the group, moves
its workers and returns the actions that follow; `membership` says in which order.
"""

from __future__ import annotations

import itertools

from jupyter_elastic.driver.attempt_group import DEPARTURE, ROUND, AttemptGroup, Life, RoundState
from jupyter_elastic.driver.group_actions import (
    Action,
    CallMember,
    FormGroup,
    FormPrivateGroup,
    Kill,
    Release,
    RemoveMember,
    Settled,
    StartMember,
)
from jupyter_elastic.driver.members import Member, MemberState


def settle(group: AttemptGroup) -> list[Action]:
    """Report a complete group once for each round, and once for each command that the group fulfils."""
    members = [w for w in group.workers.values() if group.in_round(w) and w.place != MemberState.LEAVING]
    if not members or any(w.waits or w.place == MemberState.JOINING for w in members):
        return []
    if group.round_state is RoundState.BROKEN:
        return []  # a member died in the join: the round never existed, workers that got through come back
    slots = tuple(w.slot for w in sorted(members, key=_seniority))
    complete = set(slots) == set(group.wanted)
    if group.round_state is RoundState.SETTLED and (not complete or group.reported >= group.generation):
        return []
    group.round_state = ROUND.after(group.round_state, Settled)
    if complete:
        group.reported = group.generation
    return [Settled(group.round, group.generation, slots, complete)]


def dismiss(group: AttemptGroup, *, late: bool) -> list[Action]:
    """Send away workers that never were members and are not wanted; with `late`, all that did not join before the end.

    A worker whose reserved rank is wrong goes too: its slot gets another worker when it is gone.
    """
    actions: list[Action] = []
    for worker in group.newcomers():
        if not worker.out and (late or worker.slot not in group.wanted or not _holds(group, worker)):
            action = RemoveMember(worker.name) if worker.waits else Kill(worker.name)
            worker.move(type(action))
            actions.append(action)
    return actions


def start_workers(group: AttemptGroup) -> list[Action]:
    """Start a worker on each wanted slot that has none; a resumable cell's only when all of the last start are gone."""
    if group.finishing or (group.resumable and any(w.out for w in group.workers.values())):
        return []
    taken = {w.slot for w in group.workers.values()}
    actions: list[Action] = []
    for slot in group.wanted:
        if slot not in taken:
            group.restarting.move(StartMember)
            newcomer = group.round > 0 and not group.resumable
            born = len(group.workers) + len(group.gone_names)
            worker = group.workers[f"w{born}"] = Member(f"w{born}", slot, born, new=newcomer)
            near = [w for w in group.workers.values() if w.slot in group.wanted and w.place != MemberState.LEAVING]
            rank = len(near) - 1
            if group.regroups:
                rank, _ = worker.reserved_rank = _reserve_rank(group)
            actions.append(StartMember(worker.name, slot, rank, len(group.wanted), newcomer=newcomer))
    return actions


def release(group: AttemptGroup) -> list[Action]:
    """Release the slots that had a worker, have none and won't get one."""
    now = frozenset(w.slot for w in group.workers.values())
    if group.life is Life.GOING:
        waiting = (group.lost_slots | group.refused) & set(group.commanded)
        now |= group.held & (waiting | set(group.wanted) if group.resumable else waiting)
    free = sorted(group.held - now)
    group.held = now
    return [Release(slot) for slot in free]


def form_private(group: AttemptGroup) -> list[Action]:
    """Keep workers out of `hvd.init()` once the cell runs `elastic.run`: members would wait for what follows."""
    if not group.regroups or group.finishing:
        return []
    actions: list[Action] = []
    training = min((member.training for member in group.members()), default=0)
    for worker in group.newcomers():
        behind = worker.place == MemberState.RUN and worker.training < training
        if worker.place == MemberState.INIT or behind or (worker.place == MemberState.COLLECTIVE and group.alone):
            worker.move(FormPrivateGroup)
            worker.reserved_rank = worker.reserved_rank or _reserve_rank(group)
            actions.append(FormPrivateGroup(worker.name, *worker.reserved_rank, alone=group.alone))
    return actions


def starting(group: AttemptGroup) -> list[Member] | None:
    """Return the members of the round that starts now; None if no round starts."""
    members, coming = group.members(), _next(group)
    if any(not w.waits for w in members) or group.left_behind():
        return None
    if not group.commanded and not group.finishing:
        return []
    return coming if coming and _enough(group, coming) else None


def form(group: AttemptGroup, coming: list[Member]) -> list[Action]:
    """Start a round of these members, and remove all others; without any, the group is over."""
    restore = not any(w.has_state for w in coming)
    actions = _remove([w for w in group.members() if w not in coming], keep=restore)
    if not coming:
        return actions
    group.round += 1
    group.round_state = ROUND.after(group.round_state, FormGroup)
    group.departure = DEPARTURE.after(group.departure, FormGroup)
    early = any(w.place == MemberState.COLLECTIVE for w in coming)
    names = tuple(w.name for w in _in_order(coming))
    for worker in coming:
        worker.early = worker.place == MemberState.COLLECTIVE
        worker.move(FormGroup)
        worker.round, worker.reserved_rank = group.round, None
    group.called.clear()
    return [*actions, FormGroup(group.round, group.generation, names, restore, collective=early)]


def call(group: AttemptGroup) -> list[Action]:
    """Call the members to the rendezvous, if the next round would differ from the present one."""
    members, coming = group.members(), _next(group)
    if group.finishing or not members or {w.name for w in members} == {w.name for w in coming}:
        return []
    if group.commanded and not _enough(group, coming):
        return []
    called = [w.name for w in members if not w.waits and w.name not in group.called]
    group.called.update(called)
    return [CallMember(name) for name in called]


def _reserve_rank(group: AttemptGroup) -> tuple[int, int]:
    """Reserve a joining worker's rank in the group of all wanted workers; members can be renumbered."""
    taken = {w.reserved_rank[0] for w in group.newcomers() if w.reserved_rank and w.place != MemberState.LEAVING}
    return next(rank for rank in itertools.count(len(group.staying())) if rank not in taken), len(group.wanted)


def _holds(group: AttemptGroup, worker: Member) -> bool:
    """Return True if a joining worker's reserved rank is still right: rank 0 is for a holder of state."""
    if worker.reserved_rank is None:
        return True
    rank, size = worker.reserved_rank
    return size == len(group.wanted) and (rank > 0 or not group.staying())


def _next(group: AttemptGroup) -> list[Member]:
    """Return the members of a round that would start now; workers with reserved ranks come only all together."""
    kept = group.staying()
    coming = kept + [w for w in group.newcomers() if w.waits and w.slot in group.wanted]
    return coming if not group.regroups or len(coming) == len(group.wanted) else kept


def _enough(group: AttemptGroup, coming: list[Member]) -> bool:
    if group.finishing:
        return bool(coming)
    if not group.members():  # first round, or all have died: wait for all
        return bool(coming) and {w.slot for w in coming} == set(group.wanted)
    return len(coming) >= min(group.min_slots, len(group.commanded))


def _remove(workers: list[Member], *, keep: bool) -> list[Action]:
    """Send workers away from the rendezvous; with `keep`, the first of them that has the state saves it."""
    actions: list[Action] = []
    for worker in sorted(workers, key=_seniority):
        worker.move(RemoveMember)
        actions.append(RemoveMember(worker.name, keep=keep and worker.has_state))
        keep = False
    return actions


def _seniority(worker: Member) -> tuple[bool, int]:
    """Sort key: holders of state first, then the oldest."""
    return (not worker.has_state, worker.age)


def _in_order(coming: list[Member]) -> list[Member]:
    """Return the members of a round by rank: reserved ranks are kept, the other ranks go by seniority."""
    reserved_ranks = {w.reserved_rank[0]: w for w in coming if w.reserved_rank is not None}
    others = iter(sorted((w for w in coming if w.reserved_rank is None), key=_seniority))
    return [reserved_ranks.get(rank) or next(others) for rank in range(len(coming))]
