"""Data that workers hold themselves, and the samples that move between them: `training.shard(local, balance=...)`.

A sample is known by the worker that it came from and its number there. It has one holder at a time: the receiver from
the moment that its bytes are there and checked, and only then does the sender give it up. A worker can still read the
samples that it has sent, so it takes back those that a receiver's death has left without a holder. If a change of the
group leaves a sample with two holders, or none, all members settle that when the next group begins to train.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import pickle
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from jupyter_elastic.balance import table
from jupyter_elastic.balance.transfer_plan import TransferPlan
from jupyter_elastic.training import data, link
from jupyter_elastic.training.data import MicroBatch, Numbers
from jupyter_elastic.training.group import Array, Group
from jupyter_elastic.training.pace import pace
from jupyter_elastic.training.ranks import collective
from jupyter_elastic.training.unequal.samples import fingerprint, pickled
from jupyter_elastic.types.errors import BadRequest

MAX_BYTES = 64 << 20
"""Maximum bytes of one message."""
SHOWN_S = 2.0
"""Seconds between two updates of the table of hosts while nothing moves."""
_DIGEST = 16
SampleId = tuple[str, int]
"""The worker that a sample came from, and its number there."""


class Declaration(msgspec.Struct, frozen=True):
    """A worker's samples, as it declares them to the others when a group begins to train."""

    origin: str
    own: int
    """Number of its own samples that the worker holds."""
    received: dict[str, bytes]
    """Numbers (int64) of others' samples that the worker holds, by the worker that they came from."""
    storage: int | None
    pinned: int
    """Number of its own samples that never leave the worker: those with the lowest numbers."""


class _Chunk(msgspec.Struct, frozen=True):
    """Samples on their way."""

    ids: tuple[SampleId, ...]
    trained: tuple[int, ...]
    content: tuple[bytes, ...]
    """Each sample, pickled by the sender, a worker of the same job."""


_DECLARATION, _CHUNK = msgspec.msgpack.Decoder(Declaration), msgspec.msgpack.Decoder(_Chunk)


@dataclass
class Received:
    """A sample that came from another worker."""

    sample: Any
    trained: int


class LocalShard:
    """The samples that this worker trains: its own, less those that it has sent away, and those that it has received.

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
        known = fingerprint(self.count, lambda number: self.sample(("", number)), type(content).__name__)
        self.origin = f"{origin}.{known}"
        self.storage, self.pinned = storage, pinned
        self.here: Array = np.ones(self.count, dtype=bool)
        """Mask of its own samples that this worker holds."""
        self.trained: Array = np.full(self.count, -1, dtype=np.int64)
        """Step of the present epoch in which each own sample was trained; -1: not yet."""
        self.received: dict[SampleId, Received] = {}
        self.sent_samples = self.received_samples = 0
        """Samples moved since the training began."""
        self.plan: TransferPlan | None = None
        self._epoch = -1
        self.links: tuple[int, tuple[tuple[float, ...], ...]] | None = None
        """The generation whose links were measured, and their bandwidth."""
        self._company: Any = None
        self.members: list[str] = []
        """The names of all holders in the present group, by rank."""
        self.held: list[int] = []
        """Number of samples of each of them."""
        self._before: dict[str, int] = {}
        """Number of samples of each when it was first seen."""
        self._shown_at = -math.inf
        self._shown = secrets.token_hex(8)

    def show(self, group: Group, words: str | None = None) -> None:
        """Show each host's samples, speed and waiting, as one display that is renewed; rank 0 does.

        `words` is the decision to show; without it, the display is renewed no more often than every `SHOWN_S`.
        """
        now = time.monotonic()
        if link.current is None or group.rank() != 0 or len(self.held) != len(self.members):
            return
        if words is None and now < self._shown_at + SHOWN_S:
            return
        if words is None and self.plan is not None:
            words = self.plan.why
        speeds, waits = pace.speeds or (), pace.waited_shares
        rows = [
            table.HostRow(name, self._before.setdefault(name, held), held, speed, waiting)
            for name, held, speed, waiting in itertools.zip_longest(self.members, self.held, speeds, waits)
        ]
        link.current.show(table.bundle(rows, words or ""), self._shown, again=self._shown_at > -math.inf)
        self._shown_at = now

    def __len__(self) -> int:
        return int(self.here.sum()) + len(self.received)

    def __getitem__(self, number: int) -> Any:
        return self.sample(self.ids()[number])

    def ids(self) -> list[SampleId]:
        """Return the samples that this worker holds."""
        return [(self.origin, int(number)) for number in np.flatnonzero(self.here)] + sorted(self.received)

    # --- what a worker says of its samples, and what follows for all

    def declare(self) -> Declaration:
        """Return this worker's declaration to the others."""
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
        """Give up samples that another member holds rightly, take back those that none holds."""
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
        """Begin the epoch, or go on with step `start`: samples trained in that step and later count as untrained."""
        if epoch != self._epoch:
            start, self._epoch = 0, epoch
        self.trained[self.trained >= start] = -1
        for one in self.received.values():
            one.trained = one.trained if one.trained < start else -1

    def waiting(self, seed: int, *, shuffle: bool) -> list[SampleId]:
        """Return the samples that are still to be trained in this epoch, in the order of their training."""
        found = [(self.origin, int(number)) for number in np.flatnonzero(self.here & (self.trained < 0))]
        found += sorted(key for key, one in self.received.items() if one.trained < 0)
        if shuffle:
            mixed = np.random.default_rng([seed, self._epoch, len(found)]).permutation(len(found))
            found = [found[int(number)] for number in mixed]
        return found

    def mark(self, ids: Sequence[SampleId], step: int) -> None:
        """Mark these samples as trained in this step."""
        for key in ids:
            if key in self.received:
                self.received[key].trained = step
            else:
                self.trained[key[1]] = step

    # --- content

    def take(self, ids: Sequence[SampleId], collate: Callable[[list[Any]], Any] | None) -> Any:
        """Return a batch of these samples, in the data's own form; without any, one sample as padding."""
        own = np.array([number for origin, number in ids if origin == self.origin], dtype=np.int64)
        others = [self.received[key].sample for key in ids if key[0] != self.origin]
        if not ids:
            others = [self._company] if self._company is not None else [self.sample(self.ids()[0])]
        if not data.columnar(self.content):
            return (collate or data.stack)([self.content[int(number)] for number in own] + others)
        parts = ([data.take(self.content, own)] if len(own) else []) + others
        return parts[0] if len(parts) == 1 else _joined(parts)

    def sample(self, key: SampleId) -> Any:
        """Return the content of a sample that this worker holds."""
        if key[0] != self.origin:
            return self.received[key].sample
        if data.columnar(self.content):
            return data.take(self.content, np.array([key[1]]))
        return self.content[key[1]]

    def share_company(self, rank: int, group: Group, counts: Sequence[int]) -> None:
        """Share a sample as padding, which counts for nothing, if a member holds none."""
        self._company = None
        if all(counts) or not any(counts):
            return
        giver = next(number for number, count in enumerate(counts) if count)
        mine = pickled(self.sample(self.ids()[0])) if rank == giver else b""
        self._company = pickle.loads(gathered(group, mine)[giver])  # noqa: S301  by a worker of this job

    def movable(self) -> list[SampleId]:
        """Return the samples that may leave this worker, untrained ones first."""
        free = self.here.copy()
        free[: self.pinned] = False
        numbers = np.flatnonzero(free)
        order = np.argsort(self.trained[numbers] >= 0, kind="stable")
        return [(self.origin, int(number)) for number in numbers[order]] + sorted(self.received)

    def pack(self, ids: Sequence[SampleId]) -> tuple[bytes, int]:
        """Return one message with the first of these samples, as many as fit, and their number.

        The message has a checksum.
        """
        content: list[bytes] = []
        total = 0
        for key in ids:
            packed = pickled(self.sample(key))
            total += len(packed)
            if len(packed) > MAX_BYTES // 2:
                raise BadRequest(
                    f"Sample {key[1]} of {key[0]} has {len(packed):,} bytes, and a sample that moves may have "
                    f"{MAX_BYTES // 2:,}. Keep them where they are (balance='none', or pinned), or declare paths of "
                    "files that all hosts reach instead of their content."
                )
            if total > MAX_BYTES // 2:
                break
            content.append(packed)
        if not content:
            return b"", 0
        packed_ids = tuple(ids[: len(content)])
        trained = [self.received[k].trained if k in self.received else int(self.trained[k[1]]) for k in packed_ids]
        body = msgspec.msgpack.encode(_Chunk(packed_ids, tuple(trained), tuple(content)))
        return hashlib.blake2b(body, digest_size=_DIGEST).digest() + body, len(content)

    def unpack(self, message: bytes) -> bool:
        """Take samples in; return False, and take none, if the message is damaged."""
        if not message:
            return True
        digest, body = message[:_DIGEST], message[_DIGEST:]
        if len(message) > MAX_BYTES or hashlib.blake2b(body, digest_size=_DIGEST).digest() != digest:
            return False
        chunk = _CHUNK.decode(body)
        for key, trained, content in zip(chunk.ids, chunk.trained, chunk.content, strict=True):
            if key[0] == self.origin:
                self.here[key[1]], self.trained[key[1]] = True, trained
            else:
                self.received[key] = Received(pickle.loads(content), trained)  # noqa: S301  by a worker of this job
        self.received_samples += len(chunk.ids)
        return True

    def give_up(self, ids: Sequence[SampleId]) -> None:
        """Give up these samples: another worker holds them now."""
        for key in ids:
            if key[0] == self.origin:
                self.here[key[1]] = False
            else:
                del self.received[key]
        self.sent_samples += len(ids)


# --- all members together


def gathered(group: Group, mine: bytes) -> list[bytes]:
    """Return each member's message, by rank."""
    return collective(lambda: group.exchange([mine] * group.size()))


def agree(shard: LocalShard, group: Group | None) -> list[Declaration]:
    """Settle the holders of samples, when a group begins to train; return the members' declarations."""
    if group is None or group.size() == 1:
        shard.settle(0, [shard.declare()])
        return [shard.declare()]
    found = gathered(group, msgspec.msgpack.encode(shard.declare()))
    declared = [_DECLARATION.decode(one) for one in found]
    shard.settle(group.rank(), declared)
    shard.members = holders(declared)
    return declared


def holders(declared: Sequence[Declaration]) -> list[str]:
    """Return the members' names, with the fingerprint of the data only if the names alone are not unique."""
    names = [one.origin.rpartition(".")[0] for one in declared]
    return names if len(set(names)) == len(names) else [one.origin for one in declared]


def counts(mine: int, group: Group | None) -> list[int]:
    """Return a number of each member, by rank."""
    if group is None or group.size() == 1:
        return [mine]
    numbers: Numbers = np.zeros(group.size(), dtype=np.int64)
    numbers[group.rank()] = mine
    return [int(number) for number in collective(lambda: group.total(numbers))]


def shares(waiting: Sequence[int], batch_size: int) -> Numbers:
    """Return the number of samples of each member in each step, chosen so that all members end in the same step.

    Args:
        waiting: Samples that each member has still to train.
        batch_size: Samples of the global batch.

    Returns:
        (steps, members): each row adds up to `batch_size`, the last one to the remainder; each column to `waiting`.
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
    """Yield a member's part of one step in pieces, equally many on all members, each with its weight."""
    assert len(ids) == row[rank]
    total = int(row.sum())
    number = 1 if micro_batch is None else math.ceil(int(row.max()) / micro_batch)
    for part in range(number):
        first, behind = data.share(len(ids), part, number)
        some = list(ids[first:behind])
        places: Numbers = np.arange(first, behind, dtype=np.int64)
        yield some, MicroBatch(step, places, len(some) / total, total, part == number - 1, number == 1)


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
