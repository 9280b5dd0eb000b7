"""`training.shard(local, balance=...)`: workers that hold data of their own, and the samples that move between them.

A sample is known by the worker that it came from and its number there. It is one worker's at a time: the receiver's
from the moment that its bytes are there and checked, and its sender only then gives it up. What a worker has sent it
can still read, so it takes back what the receiver's death has left without an owner. Whatever a change of the group
leaves behind (a sample that two workers hold, or none), all members settle when the next group begins to train.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import pickle
import secrets
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from jupyter_elastic.balance import memory, table
from jupyter_elastic.balance.instance import MAX_EPOCHS, Host, Instance
from jupyter_elastic.balance.plan import Plan
from jupyter_elastic.balance.solvers import solve
from jupyter_elastic.platform import paths, private_files
from jupyter_elastic.training import data, session
from jupyter_elastic.training.context import context
from jupyter_elastic.training.data import MicroBatch, Numbers
from jupyter_elastic.training.group import Array, Group
from jupyter_elastic.training.membership import collective
from jupyter_elastic.training.pace import DRIFT, pace
from jupyter_elastic.training.samples import fingerprint, pickled
from jupyter_elastic.types.errors import BadRequest, ElasticError, EngineError

CHUNK = 1 << 20
"""Bytes that a worker sends another in one round, about."""
MOST_BYTES = 64 << 20
"""The most bytes of one message."""
TRIES = 3
"""How often a chunk is sent that arrives damaged."""
PROBES = (1 << 16, 1 << 19, 1 << 22)
"""Bytes by which a link is measured: the next size where one took less than `PROBE_S`."""
PROBE_S = 0.02
EXACT_S = 3.0
"""What the exact solver may cost: importing it takes a second of a processor, and more on a slow host."""
GREEDY_OFF = 0.03
"""By what part the greedy plan may be slower than the best one."""
GAIN = 1.05
"""A plan is carried out when what is left of the training becomes so many times as fast, the transfer counted."""
WATCHED = 3
"""After so many rounds a transfer is compared with its plan."""
SHOWN_S = 2.0
"""How often the table of hosts is renewed while nothing moves, in seconds."""
MOST_SAID = 16
"""So many hosts are named when a plan is said."""
MEASURED = "measured.json"
"""The file of the user's state folder in which speeds and bandwidths are remembered."""
_DIGEST = 16
SampleId = tuple[str, int]
"""The worker that a sample came from, and its number there."""


class Declaration(msgspec.Struct, frozen=True):
    """What a worker tells the others of its samples when a group begins to train."""

    origin: str
    own: int
    """How many of its own samples it holds."""
    received: dict[str, bytes]
    """Numbers (int64) of others' samples that it holds, by the worker that they came from."""
    storage: int | None
    pinned: int
    """How many of its own never leave it: those with the lowest numbers."""


class _Chunk(msgspec.Struct, frozen=True):
    """Samples on their way."""

    ids: tuple[SampleId, ...]
    trained: tuple[int, ...]
    content: tuple[bytes, ...]
    """Each a pickle by the sender, a worker of the same job."""


class _Answer(msgspec.Struct, frozen=True):
    """What rank 0 has planned."""

    plan: Plan | None = None
    problem: str = ""


@dataclass
class Received:
    """A sample that came from another worker."""

    sample: Any
    trained: int


class LocalShard:
    """The samples that this worker trains: its own, less what it has sent away, and what it has received.

    Give it to `training.batches`. Its length and items are those of the samples that it holds now.
    """

    def __init__(
        self,
        content: Any,
        solver: str,
        *,
        origin: str,
        storage: int | None = None,
        pinned: int = 0,
    ) -> None:
        self.content, self.solver = content, solver
        self.count = data.length(content)
        self.origin = ""
        known = fingerprint(self.count, lambda number: self._sample(("", number)), type(content).__name__)
        self.origin = f"{origin}.{known}"
        self.storage, self.pinned = storage, pinned
        self.here: Array = np.ones(self.count, dtype=bool)
        """Which of its own samples this worker holds."""
        self.trained: Array = np.full(self.count, -1, dtype=np.int64)
        """In which step of the present epoch each was trained; -1: not yet."""
        self.received: dict[SampleId, Received] = {}
        self.sent_samples = self.received_samples = 0
        """Moved since the training began."""
        self.plan: Plan | None = None
        """The last one that was carried out."""
        self._epoch = -1
        self._links: tuple[int, tuple[tuple[float, ...], ...]] | None = None
        """The generation whose links were measured, and their bandwidth."""
        self._company: Any = None
        self.members: list[str] = []
        """The names of all holders in the present group, by rank."""
        self.held: list[int] = []
        """How many samples each of them holds."""
        self._before: dict[str, int] = {}
        """How many each held when it was first seen."""
        self._shown_at = -math.inf
        self._shown = secrets.token_hex(8)

    def show(self, group: Group, words: str | None = None) -> None:
        """Show what each host holds and how it works, as one display that is renewed; rank 0 does.

        With `words`, what was decided; without, no more often than `SHOWN_S`.
        """
        now = time.monotonic()
        if session.current is None or group.rank() != 0 or len(self.held) != len(self.members):
            return
        if words is None and now < self._shown_at + SHOWN_S:
            return
        if words is None and self.plan is not None:
            words = self.plan.why
        speeds, waits = pace.speeds or (), pace.waited_shares
        rows = [
            table.Row(name, self._before.setdefault(name, held), held, speed, waiting)
            for name, held, speed, waiting in itertools.zip_longest(self.members, self.held, speeds, waits)
        ]
        session.current.show(table.bundle(rows, words or ""), self._shown, again=self._shown_at > -math.inf)
        self._shown_at = now

    def __len__(self) -> int:
        return int(self.here.sum()) + len(self.received)

    def __getitem__(self, number: int) -> Any:
        return self._sample(self.ids()[number])

    def ids(self) -> list[SampleId]:
        """The samples that this worker holds."""
        return [(self.origin, int(number)) for number in np.flatnonzero(self.here)] + sorted(self.received)

    # --- what a worker says of its samples, and what follows for all

    def declare(self) -> Declaration:
        """What the others are to know."""
        by_origin: dict[str, list[int]] = {}
        for origin, number in sorted(self.received):
            by_origin.setdefault(origin, []).append(number)
        return Declaration(
            self.origin,
            int(self.here.sum()),
            {origin: _packed(numbers) for origin, numbers in by_origin.items()},
            self.storage,
            self.pinned,
        )

    def settle(self, rank: int, declared: Sequence[Declaration]) -> None:
        """Give up what another member holds rightly, take back what nobody holds."""
        origins = [one.origin for one in declared]
        if len(set(origins)) != len(origins):
            raise BadRequest(
                "Two workers declare their data under one name: give each training.shard(..., name=...) a name of its "
                "own, such as the host's."
            )
        elsewhere: set[int] = set()
        for other, one in enumerate(declared):
            if other == rank:
                continue
            elsewhere.update(_unpacked(one.received.get(self.origin, b"")).tolist())
            for origin, packed in one.received.items() if other < rank else ():
                for number in _unpacked(packed).tolist():
                    self.received.pop((origin, number), None)
        self.here[:] = True
        self.here[np.array(sorted(elsewhere), dtype=np.int64)] = False

    def begin_epoch(self, epoch: int, start: int) -> None:
        """The epoch begins, or goes on with step `start`: what was trained in that step and later counts as not."""
        if epoch != self._epoch:
            start, self._epoch = 0, epoch
        self.trained[self.trained >= start] = -1
        for one in self.received.values():
            one.trained = one.trained if one.trained < start else -1

    def waiting(self, seed: int, *, shuffle: bool) -> list[SampleId]:
        """The samples that are still to be trained in this epoch, in the order of their training."""
        found = [(self.origin, int(number)) for number in np.flatnonzero(self.here & (self.trained < 0))]
        found += sorted(key for key, one in self.received.items() if one.trained < 0)
        if shuffle:
            mixed = np.random.default_rng([seed, self._epoch, len(found)]).permutation(len(found))
            found = [found[int(number)] for number in mixed]
        return found

    def mark(self, ids: Sequence[SampleId], step: int) -> None:
        """These are trained in this step."""
        for key in ids:
            if key in self.received:
                self.received[key].trained = step
            else:
                self.trained[key[1]] = step

    # --- content

    def take(self, ids: Sequence[SampleId], collate: Callable[[list[Any]], Any] | None) -> Any:
        """A batch of these samples, in the data's own form; without any, one sample for company."""
        own = np.array([number for origin, number in ids if origin == self.origin], dtype=np.int64)
        others = [self.received[key].sample for key in ids if key[0] != self.origin]
        if not ids:
            others = [self._company] if self._company is not None else [self._sample(self.ids()[0])]
        if not data.columnar(self.content):
            return (collate or data.stack)([self.content[int(number)] for number in own] + others)
        parts = ([data.take(self.content, own)] if len(own) else []) + others
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _sample(self, key: SampleId) -> Any:
        if key[0] != self.origin:
            return self.received[key].sample
        if data.columnar(self.content):
            return data.take(self.content, np.array([key[1]]))
        return self.content[key[1]]

    def share_company(self, rank: int, group: Group, counts: Sequence[int]) -> None:
        """Where a member holds nothing, all get a sample that it can compute with and that counts for nothing."""
        self._company = None
        if all(counts) or not any(counts):
            return
        giver = next(number for number, count in enumerate(counts) if count)
        mine = pickled(self._sample(self.ids()[0])) if rank == giver else b""
        self._company = pickle.loads(gathered(group, mine)[giver])  # noqa: S301  by a worker of this job

    def movable(self) -> list[SampleId]:
        """The samples that may leave this worker, those first that wait for their training."""
        free = self.here.copy()
        free[: self.pinned] = False
        numbers = np.flatnonzero(free)
        order = np.argsort(self.trained[numbers] >= 0, kind="stable")
        return [(self.origin, int(number)) for number in numbers[order]] + sorted(self.received)

    def pack(self, ids: Sequence[SampleId]) -> tuple[bytes, int]:
        """The first of these samples, as many as may be in one message, and their number.

        The message says whether it came through.
        """
        content: list[bytes] = []
        total = 0
        for key in ids:
            packed = pickled(self._sample(key))
            total += len(packed)
            if len(packed) > MOST_BYTES // 2:
                raise BadRequest(
                    f"Sample {key[1]} of {key[0]} has {len(packed):,} bytes, and a sample that moves may have "
                    f"{MOST_BYTES // 2:,}. Keep them where they are (balance='none', or pinned), or declare paths of "
                    "files that all hosts reach instead of their content."
                )
            if total > MOST_BYTES // 2:
                break
            content.append(packed)
        if not content:
            return b"", 0
        packed_ids = tuple(ids[: len(content)])
        trained = [self.received[k].trained if k in self.received else int(self.trained[k[1]]) for k in packed_ids]
        body = msgspec.msgpack.encode(_Chunk(packed_ids, tuple(trained), tuple(content)))
        return hashlib.blake2b(body, digest_size=_DIGEST).digest() + body, len(content)

    def unpack(self, message: bytes) -> bool:
        """Take samples in; False, and none of them, when the message is not what was sent."""
        if not message:
            return True
        digest, body = message[:_DIGEST], message[_DIGEST:]
        if len(message) > MOST_BYTES or hashlib.blake2b(body, digest_size=_DIGEST).digest() != digest:
            return False
        chunk = msgspec.msgpack.decode(body, type=_Chunk)
        for key, trained, content in zip(chunk.ids, chunk.trained, chunk.content, strict=True):
            if key[0] == self.origin:
                self.here[key[1]], self.trained[key[1]] = True, trained
            else:
                self.received[key] = Received(pickle.loads(content), trained)  # noqa: S301  by a worker of this job
        self.received_samples += len(chunk.ids)
        return True

    def give_up(self, ids: Sequence[SampleId]) -> None:
        """These are another worker's now."""
        for key in ids:
            if key[0] == self.origin:
                self.here[key[1]] = False
            else:
                del self.received[key]
        self.sent_samples += len(ids)


# --- all members together


def gathered(group: Group, mine: bytes) -> list[bytes]:
    """What each member gives, by rank."""
    return collective(lambda: group.exchange([mine] * group.size()))


def agree(shard: LocalShard, group: Group | None) -> list[Declaration]:
    """Settle who holds what, when a group begins to train; returns what the members have declared."""
    if group is None or group.size() == 1:
        shard.settle(0, [shard.declare()])
        return [shard.declare()]
    found = gathered(group, msgspec.msgpack.encode(shard.declare()))
    declared = [msgspec.msgpack.decode(one, type=Declaration) for one in found]
    shard.settle(group.rank(), declared)
    shard.members = holders(declared)
    return declared


def holders(declared: Sequence[Declaration]) -> list[str]:
    """What the members are called: without what tells their data from other data, where the names alone differ."""
    names = [one.origin.rpartition(".")[0] for one in declared]
    return names if len(set(names)) == len(names) else [one.origin for one in declared]


def counts(mine: int, group: Group | None) -> list[int]:
    """A number of each member's, by rank."""
    if group is None or group.size() == 1:
        return [mine]
    numbers: Numbers = np.zeros(group.size(), dtype=np.int64)
    numbers[group.rank()] = mine
    return [int(number) for number in collective(lambda: group.total(numbers))]


def shares(waiting: Sequence[int], batch_size: int) -> Numbers:
    """How many samples each member computes in each step, so that all come to their end in the same one.

    Args:
        waiting: Samples that each member has still to train.
        batch_size: Of the global batch.

    Returns:
        (steps, members): each row adds up to `batch_size`, the last one to what is left; each column to `waiting`.
    """
    places = np.concatenate([(np.arange(count) + 0.5) / max(count, 1) for count in waiting])
    owners = np.repeat(np.arange(len(waiting)), waiting)[np.argsort(places, kind="stable")]
    steps = math.ceil(len(owners) / batch_size)
    found: Numbers = np.zeros((steps, len(waiting)), dtype=np.int64)
    np.add.at(found, (np.arange(len(owners)) // batch_size, owners), 1)
    return found


def pieces(
    ids: Sequence[SampleId], row: Numbers, rank: int, step: int, micro_batch: int | None
) -> Iterator[tuple[list[SampleId], MicroBatch]]:
    """A member's part of one step in pieces, equally many on all members, each with its weight."""
    assert len(ids) == row[rank]
    total = int(row.sum())
    number = 1 if micro_batch is None else math.ceil(int(row.max()) / micro_batch)
    for part in range(number):
        first, behind = data.share(len(ids), part, number)
        some = list(ids[first:behind])
        places: Numbers = np.arange(first, behind, dtype=np.int64)
        yield some, MicroBatch(step, places, len(some) / total, total, part == number - 1, number == 1)


def measured_bandwidth(group: Group) -> tuple[tuple[float, ...], ...]:
    """Bytes/s from each member to each other, by short transfers over links that have no member in common."""
    rank, size = group.rank(), group.size()
    empty = min(max(_seconds(group, [b""] * size)) for _ in range(3))
    found = [[0.0] * size for _ in range(size)]
    for links in pairings(size):
        left = dict(links)
        for length in PROBES:
            parts = [b"\0" * length if left.get(rank) == to else b"" for to in range(size)]
            took = _seconds(group, parts)
            for sender, receiver in list(left.items()):
                found[sender][receiver] = length / max(took[receiver] - empty, 1e-5)
                if took[receiver] > PROBE_S:
                    del left[sender]
            if not left:
                break
    return tuple(map(tuple, found))


def pairings(size: int) -> list[list[tuple[int, int]]]:
    """All links between so many members, as (sender, receiver), in groups in which each member is at most once."""
    members = list(range(size)) + [-1] * (size % 2)
    found = []
    for _ in range(len(members) - 1):
        pairs = [(members[at], members[-1 - at]) for at in range(len(members) // 2)]
        pairs = [pair for pair in pairs if min(pair) >= 0]
        found += [pairs, [(receiver, sender) for sender, receiver in pairs]]
        members.insert(1, members.pop())
    return found


def _seconds(group: Group, parts: list[bytes]) -> list[float]:
    """How long an exchange takes for each member."""
    ready = np.zeros(1)
    collective(lambda: group.total(ready))
    began = pace.clock()
    collective(lambda: group.exchange(parts))
    return _floats(group, pace.clock() - began)


def _floats(group: Group, mine: float) -> list[float]:
    values = np.zeros(group.size())
    values[group.rank()] = mine
    return [float(value) for value in collective(lambda: group.total(values))]


class _Remembered(msgspec.Struct, frozen=True):
    """What rank 0 knows of the members from earlier trainings."""

    speeds: tuple[float, ...] | None = None
    links: tuple[tuple[float, ...], ...] | None = None


def recalled(shard: LocalShard, group: Group) -> tuple[float, ...] | None:
    """The members' speeds in samples/s as rank 0 remembers them; None unless all are known. Its links count too."""
    mine = _Remembered()
    if group.rank() == 0:
        kept, now = _memory(), time.time()
        speeds = memory.speeds_of(kept, context.workload, shard.members, now)
        mine = _Remembered(speeds, memory.bandwidth_of(kept, shard.members, now))
    answer = collective(lambda: group.broadcast(msgspec.msgpack.encode(mine)))
    found = msgspec.msgpack.decode(answer, type=_Remembered)
    if found.links is not None:
        shard._links = (pace.generation, found.links)
    return found.speeds


def remember(
    shard: LocalShard,
    group: Group,
    *,
    speeds: tuple[float, ...] | None = None,
    links: tuple[tuple[float, ...], ...] | None = None,
) -> None:
    """Keep what was measured for later trainings; rank 0 does, in its user's state folder.

    Two trainings that do so at the same time may lose a figure, which is then measured again.
    """
    if group.rank() != 0:
        return
    kept, now = _memory(), time.time()
    if speeds is not None:
        kept = memory.with_speeds(kept, context.workload, shard.members, speeds, now)
    if links is not None:
        kept = memory.with_links(kept, shard.members, links, now)
    with contextlib.suppress(OSError, ElasticError):  # as on a full disk: they are measured again
        private_files.write_json(paths.state_dir() / MEASURED, kept)


def _memory() -> memory.Memory:
    with contextlib.suppress(ElasticError):
        return private_files.read_json(paths.state_dir() / MEASURED, memory.Memory) or memory.Memory()
    return memory.Memory()


def rebalance(
    shard: LocalShard,
    group: Group,
    speeds: Sequence[float],
    epochs: int,
    wanted: Callable[[], bool],
    overhead_s: float = 0.0,
) -> bool:
    """Plan where the samples should lie for what is left of the training, and move them if that pays.

    Args:
        shard: This worker's.
        group: Of more than one member, all of which call this.
        speeds: Samples/s of each, as measured.
        epochs: That are left, the present one among them.
        wanted: Whether this worker knows of a change of the group, for which a transfer ends early.
        overhead_s: Seconds that an epoch takes besides computing, as measured.

    Returns:
        Whether any sample moved; the same on all members.
    """
    moved = False
    while True:
        declared = agree(shard, group)
        held = shard.held = counts(len(shard), group)
        shard.show(group, shard.plan.why if shard.plan else "")
        if max(n / s for n, s in zip(held, speeds, strict=True)) < GAIN * sum(held) / sum(speeds):
            return moved
        size = max(counts(_mean_bytes(shard), group))
        if shard._links is None or shard._links[0] != pace.generation:
            shard._links = (pace.generation, measured_bandwidth(group))
            remember(shard, group, links=shard._links[1])
        make = functools.partial(
            planned, declared, held, speeds, shard._links[1], size, epochs, shard.solver, overhead_s
        )
        plan = _agreed(group, make)
        if plan is None or not plan.moves or plan.total_s * GAIN > plan.without_s:
            return moved
        shard.plan, moved = plan, True
        names = holders(declared)
        amounts = {(names.index(m.sender), names.index(m.receiver)): m.samples for m in plan.moves}
        if group.rank() == 0:
            print(said(plan, names, held, speeds, pace.waited_shares), flush=True)  # noqa: T201  seen in the views
        slower, ended = transfer(shard, group, amounts, size, wanted, plan.transfer_s)
        if not 1 / (1 + DRIFT) <= slower <= 1 + DRIFT:
            shard._links = (pace.generation, _corrected(shard._links[1], amounts, slower))
            remember(shard, group, links=shard._links[1])
        if ended:
            shard.held = counts(len(shard), group)
            shard.show(group, plan.why)
            return True


def _agreed(group: Group, make: Callable[[], Plan]) -> Plan | None:
    """The plan that rank 0 makes; None, and a warning, when there can be none."""
    mine = _Answer()
    if group.rank() == 0:
        try:
            mine = _Answer(make())
        except BadRequest as refused:
            mine = _Answer(problem=str(refused))
    answer = msgspec.msgpack.decode(collective(lambda: group.broadcast(msgspec.msgpack.encode(mine))), type=_Answer)
    if answer.plan is None:
        warnings.warn(f"no samples move: {answer.problem}", stacklevel=3)
    return answer.plan


def _corrected(
    links: tuple[tuple[float, ...], ...], used: Collection[tuple[int, int]], slower: float
) -> tuple[tuple[float, ...], ...]:
    """The bandwidths when those that were used have turned out to be so many times as slow."""
    return tuple(
        tuple(value / slower if (sender, receiver) in used else value for receiver, value in enumerate(row))
        for sender, row in enumerate(links)
    )


def said(
    plan: Plan, names: Sequence[str], held: Sequence[int], speeds: Sequence[float], waited: Sequence[float]
) -> str:
    """A plan for a person: what moves and why, and of each host what it holds, its speed and how much it has waited.

    `waited` are shares of the time, 0 to 1; empty when nobody has measured them.
    """
    lines = [f"balance: {plan.why}"]
    for number, (name, samples, speed) in enumerate(zip(names, held, speeds, strict=True)):
        out = sum(move.samples for move in plan.moves if move.sender == name)
        into = sum(move.samples for move in plan.moves if move.receiver == name)
        share = f", waited {waited[number]:.0%} of the time" if waited else ""
        after = samples - out + into
        lines.append(f"  {name}: {samples} samples, {after} from now on; {speed:.3g} samples/s{share}")
    more = len(lines) - 1 - MOST_SAID
    return "\n".join(lines[: MOST_SAID + 1] + ([f"  and {more} more"] if more > 0 else []))


def planned(
    declared: Sequence[Declaration],
    held: Sequence[int],
    speeds: Sequence[float],
    bandwidth: tuple[tuple[float, ...], ...],
    sample_bytes: float,
    epochs: int,
    solver: str,
    overhead_s: float = 0.0,
) -> Plan:
    """The plan for what the members hold now. All wait for it, so `auto` is `greedy` where that can lose little."""
    hosts = []
    for name, one, count, speed in zip(holders(declared), declared, held, speeds, strict=True):
        storage = None if one.storage is None else max(one.storage, count)
        hosts.append(Host(name, count, speed, storage, min(one.pinned, count)))
    instance = Instance(tuple(hosts), bandwidth, sample_bytes, min(max(1, epochs), MAX_EPOCHS), overhead_s)
    if solver == "auto":
        quick = solve(instance, "greedy")
        if quick.total_s * GREEDY_OFF < EXACT_S:
            return quick
    return solve(instance, solver, budget_s=EXACT_S)


def transfer(
    shard: LocalShard,
    group: Group,
    amounts: dict[tuple[int, int], int],
    sample_bytes: float,
    wanted: Callable[[], bool],
    expected_s: float = math.inf,
) -> tuple[float, bool]:
    """Carry out a plan in rounds, in each of which every pair moves the same part of what it has to move.

    Where that is more than a message may hold, as with samples of different sizes, there are more rounds. A round is
    the most that is on its way: nobody sends before all have taken in what they were sent. Ends early, with every
    sample at one of the two, when a member knows of a change of the group, or when it takes longer than expected by
    more than `DRIFT`: then the rest is worth another plan.

    Returns:
        How many times as long as `expected_s` it takes, 1 where that can't be told; and whether nothing is left to
        plan.
    """
    rank = group.rank()
    rounds = max(1, *(math.ceil(samples * sample_bytes / CHUNK) for samples in amounts.values()))
    free = shard.movable()
    outgoing: dict[int, list[SampleId]] = {}
    for (sender, receiver), samples in sorted(amounts.items()):
        if sender == rank:
            outgoing[receiver], free = free[:samples], free[samples:]
    sent = dict.fromkeys(outgoing, 0)
    passed_s, number, failures = 0.0, 0, 0
    while True:
        due = {to: data.share(len(ids), min(number, rounds - 1), rounds)[1] for to, ids in outgoing.items()}
        done = _round(shard, group, {to: ids[sent[to] : due[to]] for to, ids in outgoing.items()}, wanted)
        passed_s += done.took_s
        for to, samples in done.sent.items():
            sent[to] += samples
        failures = failures + 1 if done.damaged else 0
        if failures == TRIES:
            raise EngineError(f"samples arrive damaged from another worker, {TRIES} times in a row; they stay there")
        number += not done.damaged
        watched = number >= min(WATCHED, rounds) and passed_s > WATCHED * PROBE_S and expected_s > 0
        slower = passed_s * max(rounds, number) / number / expected_s if watched else 1.0
        if done.change or (number >= rounds and not done.left and not done.damaged):
            return slower, True
        if number < rounds and slower > 1 + DRIFT:
            return slower, False


@dataclass
class _Done:
    """What has come of a round."""

    sent: dict[int, int]
    """How many samples this worker has given up, by receiver."""
    damaged: bool
    """Whether a message arrived damaged, at whichever worker."""
    left: bool
    """Whether a message could not hold all that its sender had for it."""
    change: bool
    """Whether the group is to change."""
    took_s: float


def _round(shard: LocalShard, group: Group, parts: dict[int, list[SampleId]], wanted: Callable[[], bool]) -> _Done:
    """Send each member its part, or as much of it as a message holds, and give up what has come through."""
    rank, size = group.rank(), group.size()
    began = pace.clock()
    packed = [shard.pack(parts.get(to, [])) for to in range(size)]
    arrived = collective(lambda: group.exchange([message for message, _ in packed]))
    mine = np.zeros((size, size + 3))
    mine[:, rank] = [not shard.unpack(message) for message in arrived]
    left = any(packed[to][1] < len(ids) for to, ids in parts.items())
    mine[rank, size:] = float(wanted()), pace.clock() - began, float(left)
    verdict = collective(lambda: group.total(mine))
    sent = {to: packed[to][1] for to in parts if not verdict[rank, to]}
    for to, samples in sent.items():
        shard.give_up(parts[to][:samples])
    changes, took_s, lefts = verdict[:, size], verdict[:, size + 1], verdict[:, size + 2]
    return _Done(sent, bool(verdict[:, :size].any()), bool(lefts.any()), bool(changes.any()), float(took_s.max()))


def _mean_bytes(shard: LocalShard) -> int:
    ids = shard.ids()
    some = ids[:: max(1, len(ids) // 8)][:8]
    return math.ceil(sum(len(pickled(shard._sample(key))) for key in some) / max(1, len(some)))


def _packed(numbers: Any) -> bytes:
    return bytes(np.asarray(numbers, dtype=np.int64).tobytes())


def _unpacked(packed: bytes) -> Numbers:
    numbers: Numbers = np.frombuffer(packed, dtype=np.int64)
    return numbers


def _joined(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, tuple):
        return tuple(_joined([part[column] for part in parts]) for column in range(len(first)))
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, list):
        return [row for part in parts for row in part]
    if type(first).__module__ == "torch":
        import torch

        return torch.cat(list(parts))
    joined: Array = np.concatenate(parts)
    return joined
