"""Samples that move between workers: nothing is lost and nothing doubled, whatever happens in between.

The workers are threads with a group in memory; what they exchange, and how they settle, is the real thing.
"""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from jupyter_elastic import training
from jupyter_elastic.training.group import PeerLost
from jupyter_elastic.training.unequal import exchange, local_shards
from jupyter_elastic.training.unequal.exchange import pairings, planned, rebalance, transfer
from jupyter_elastic.training.unequal.local_shards import LocalShard, agree, shares
from jupyter_elastic.types import BALANCE
from jupyter_elastic.types.errors import BadRequest, EngineError


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path / "pool"))


class Hall:
    """Where the members of a group meet."""

    def __init__(self, size, *, breaks_at=None, taken=False, damage=0, link=None):
        self.size, self.breaks_at, self.damage = size, breaks_at, damage
        self.link = link
        self.taken = taken  # whether it breaks only when the receivers have taken in what was sent
        self.exchanges = 0
        self.barrier = threading.Barrier(size, timeout=30)
        self.given = {}


class Member:
    """A member's view of the hall, with the collectives that the exchange uses."""

    def __init__(self, hall, rank):
        self.hall, self._rank = hall, rank

    def rank(self):
        return self._rank

    def size(self):
        return self.hall.size

    def _met(self, mine):
        self.hall.given[self._rank] = mine
        self.hall.barrier.wait()
        found = [self.hall.given[rank] for rank in range(self.hall.size)]
        self.hall.barrier.wait()
        return found

    def total(self, values):
        if self.hall.exchanges == self.hall.breaks_at:
            raise PeerLost("a member died before it could say that all is there")
        return sum(self._met(np.array(values)))

    def broadcast(self, content):
        return self._met(content)[0]

    def exchange(self, parts):
        if self._rank == 0:
            self.hall.exchanges += 1
        found = [given[self._rank] for given in self._met(list(parts))]
        if self.hall.link is not None:
            if self._rank == 0:
                self.hall.link.carry(max(len(part) for given in self.hall.given.values() for part in given))
            self.hall.barrier.wait()
        if self.hall.exchanges == self.hall.breaks_at and not self.hall.taken:
            raise PeerLost("a member died while this round was on its way")
        if self.hall.damage and any(found):
            self.hall.damage -= 1
            found = [part[:-1] + bytes([part[-1] ^ 1]) if part else part for part in found]
        return found


def together(shards, work, **hall):
    """`work(shard, group)` of each in a thread of its own; what each has found or raised."""
    place = Hall(len(shards), **hall)
    found = [None] * len(shards)

    def run(rank):
        try:
            found[rank] = work(shards[rank], Member(place, rank))
        except (PeerLost, EngineError, BadRequest) as problem:
            found[rank] = problem

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(shards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def made(*sizes, **options):
    """Workers that hold so many samples, each of which says whose it is."""
    return [
        LocalShard((np.arange(size) + 1000 * rank, np.full((size, 2), rank)), "greedy", origin=f"host{rank}", **options)
        for rank, size in enumerate(sizes)
    ]


def contents(shards):
    return sorted(int(shard.take([key], None)[0][0]) for shard in shards for key in shard.ids())


def everything(*sizes):
    return [1000 * rank + number for rank, size in enumerate(sizes) for number in range(size)]


def never():
    return False


def test_a_plan_is_carried_out_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(exchange, "CHUNK", 64)
    shards = made(50, 3, 20)
    amounts = {(0, 1): 30, (2, 1): 7, (0, 2): 1}
    together(shards, lambda shard, group: transfer(shard, group, amounts, 30, never))
    assert [len(shard) for shard in shards] == [19, 40, 14]
    assert contents(shards) == everything(50, 3, 20)
    together(shards, lambda shard, group: transfer(shard, group, {(1, 0): 40}, 30, never))
    assert [len(shard) for shard in shards] == [59, 0, 14]
    assert contents(shards) == everything(50, 3, 20)


def test_a_batch_of_own_and_received_samples_has_the_datas_form():
    shards = made(4, 4)
    together(shards, lambda shard, group: transfer(shard, group, {(0, 1): 2}, 30, never))
    number, rank = shards[1].take(shards[1].ids(), None)
    assert sorted(number.tolist()) == [0, 1, 1000, 1001, 1002, 1003]
    assert rank.shape == (6, 2)


def test_torch_tensors_and_data_sets_move_too():
    torch = pytest.importorskip("torch")
    shards = [LocalShard(torch.arange(6) + 10 * rank, "auto", origin=str(rank)) for rank in range(2)]
    together(shards, lambda shard, group: transfer(shard, group, {(0, 1): 4}, 30, never))
    assert sorted(shards[1].take(shards[1].ids(), None).tolist()) == [0, 1, 2, 3, 10, 11, 12, 13, 14, 15]
    several = [LocalShard([(i, np.zeros(i)) for i in range(5)], "auto", origin=str(rank)) for rank in range(2)]
    together(several, lambda shard, group: transfer(shard, group, {(0, 1): 3}, 300, never))
    lengths = sorted(len(several[1][number][1]) for number in range(len(several[1])))
    assert lengths == [0, 0, 1, 1, 2, 2, 3, 4], "samples of different sizes"


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("breaks_at", [1, 2, 4])
@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_death_in_the_middle_loses_nothing_that_lives(dead, breaks_at, taken, monkeypatch):
    monkeypatch.setattr(exchange, "CHUNK", 300)
    shards, amounts = made(40, 2, 10), {(0, 1): 25, (0, 2): 5}
    broken = together(
        shards,
        lambda shard, group: transfer(shard, group, amounts, 40, never),
        breaks_at=breaks_at,
        taken=taken,
    )
    assert all(isinstance(problem, PeerLost) for problem in broken)
    alive = [shard for rank, shard in enumerate(shards) if rank != dead]
    arrived = {key[1] for shard in alive for key in shard.received}
    rounds = breaks_at - 1 + taken
    assert len(arrived) == sum(samples * rounds // 4 for (_, to), samples in amounts.items() if to != dead)
    together(alive, agree)
    expected = [number for number in everything(40, 2, 10) if number // 1000 != dead]
    if dead == 0:
        expected = sorted([*expected, *arrived])  # what had arrived outlives its host
    assert contents(alive) == expected


def test_a_damaged_chunk_is_sent_again(monkeypatch):
    monkeypatch.setattr(exchange, "CHUNK", 300)
    shards = made(30, 2)
    together(shards, lambda shard, group: transfer(shard, group, {(0, 1): 14}, 40, never), damage=2)
    assert [len(shard) for shard in shards] == [16, 16]
    assert contents(shards) == everything(30, 2)


def test_a_link_that_damages_everything_ends_it_and_the_samples_stay():
    shards = made(30, 2)
    found = together(shards, lambda shard, group: transfer(shard, group, {(0, 1): 14}, 40, never), damage=100)
    assert all("arrive damaged" in str(problem) for problem in found)
    assert [len(shard) for shard in shards] == [30, 2]


def test_a_change_of_the_group_ends_a_transfer_between_two_chunks(monkeypatch):
    monkeypatch.setattr(exchange, "CHUNK", 100)
    shards = made(40, 2)
    asked = []

    def wanted():
        asked.append(1)
        return len(asked) > 6

    together(shards, lambda shard, group: transfer(shard, group, {(0, 1): 38}, 40, wanted))
    assert 2 < len(shards[1]) < 40
    together(shards, agree)
    assert contents(shards) == everything(40, 2)


def test_a_sample_larger_than_a_message_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr(local_shards, "MAX_BYTES", 1000)
    (shard,) = [LocalShard(np.zeros((2, 1000)), "auto", origin="a")]
    with pytest.raises(BadRequest, match=r"Sample 0 of a\..*paths of files"):
        shard.pack(shard.movable())


def test_samples_of_very_different_sizes_go_in_as_many_messages_as_they_need(monkeypatch):
    monkeypatch.setattr(local_shards, "MAX_BYTES", 20_000)
    content = [np.full(8000 if 10 <= number < 14 else 1, number, dtype=np.uint8) for number in range(40)]
    shards = [LocalShard(content, "auto", origin="a"), LocalShard(content[:0], "auto", origin="b")]
    found = together(shards, lambda shard, group: transfer(shard, group, {(0, 1): 38}, 150, never))
    assert found == [(1.0, True), (1.0, True)]
    assert [len(shard) for shard in shards] == [2, 38]
    assert sorted(int(shard[number][0]) for shard in shards for number in range(len(shard))) == list(range(40))


def test_what_is_pinned_stays():
    shards = made(10, 1, pinned=1)
    assert [key[1] for key in shards[0].movable()] == list(range(1, 10))
    shards = made(10, 10, pinned=10)
    declared = [shard.declare() for shard in shards]
    assert planned(declared, [10, 10], [1.0, 9.0], ((0, 1e9), (1e9, 0)), 10, 5, "greedy").moves == ()


def plan_of(sizes, speeds, bandwidth, **options):
    declared = [shard.declare() for shard in made(*sizes, **options)]
    links = tuple(tuple(0.0 if i == j else bandwidth for j in range(len(sizes))) for i in range(len(sizes)))
    return planned(declared, sizes, speeds, links, 100, 20, "auto")


def test_no_link_and_one_host_move_nothing():
    assert plan_of([100, 1], [1.0, 1.0], 0.0).moves == ()
    assert plan_of([100], [1.0], 0.0).moves == ()


def test_an_empty_host_gets_samples_and_a_host_without_speed_gives_all():
    assert sum(move.samples for move in plan_of([100, 0], [1.0, 1.0], 1e6).moves) == pytest.approx(50, abs=3)
    assert sum(move.samples for move in plan_of([100, 10], [0.0, 1.0], 1e6).moves) == 100
    with pytest.raises(BadRequest, match="speed"):
        plan_of([100, 10], [0.0, 1.0], 0.0)


def test_storage_bounds_what_a_host_receives():
    shards = made(100, 10)
    shards[1].storage = 30
    declared = [shard.declare() for shard in shards]
    plan = planned(declared, [100, 10], [1.0, 1.0], ((0, 1e6), (1e6, 0)), 100, 20, "auto")
    assert sum(move.samples for move in plan.moves) == 20


def test_unequal_hosts_measure_their_links_plan_and_move():
    shards = made(300, 20, 10)
    found = together(shards, lambda shard, group: rebalance(shard, group, (50.0, 100.0, 100.0), 20, never))
    assert found == [True, True, True]
    assert contents(shards) == everything(300, 20, 10)
    assert len(shards[0]) == pytest.approx(66, abs=12)
    assert shards[0].plan.total_s < shards[0].plan.without_s / 2
    again = together(shards, lambda shard, group: rebalance(shard, group, (50.0, 100.0, 100.0), 20, never))
    assert again == [False, False, False]


def test_what_a_training_has_measured_the_next_one_knows(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path))
    measured = []

    def measure(group):
        measured.append(group.rank())
        return ((0.0, 2e6), (3e6, 0.0))

    monkeypatch.setattr(exchange, "measured_bandwidth", measure)
    monkeypatch.setattr(exchange.pace, "clock", lambda: 0.0)  # else a slow machine corrects the links

    def first(shard, group):
        agree(shard, group)
        exchange.remember(shard, group, speeds=(50.0, 100.0))
        return rebalance(shard, group, (50.0, 100.0), 20, never)

    assert together(made(300, 20), first) == [True, True]
    assert sorted(measured) == [0, 1]

    def second(shard, group):
        agree(shard, group)
        speeds = exchange.recalled(shard, group)
        return speeds, rebalance(shard, group, speeds, 20, never), shard.links[1]

    # other data on the same hosts, in another order of ranks
    shards = [LocalShard(np.arange(size), "greedy", origin=f"host{who}") for size, who in ((20, 1), (300, 0))]
    assert together(shards, second) == [((100.0, 50.0), True, ((0.0, 3e6), (2e6, 0.0)))] * 2
    assert len(measured) == 2
    assert (tmp_path / exchange.MEASURED).stat().st_mode & 0o077 == 0
    monkeypatch.setattr(exchange.context, "workload", "another")
    assert together(made(300, 20), lambda *of: (agree(*of), exchange.recalled(*of))[1]) == [None, None]


@pytest.mark.parametrize("damage", ["", "{", '{"speeds": 7}'])
def test_a_memory_that_can_not_be_read_or_written_is_none(damage, monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path))
    (tmp_path / exchange.MEASURED).write_text(damage)

    def work(shard, group):
        agree(shard, group)
        before = exchange.recalled(shard, group)
        exchange.remember(shard, group, speeds=(1.0, 2.0))
        return before, exchange.recalled(shard, group)

    assert together(made(3, 3), work) == [(None, (1.0, 2.0))] * 2
    (tmp_path / "file").touch()
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path / "file"))
    assert together(made(3, 3), work) == [(None, None)] * 2


def test_two_workers_of_one_name_are_refused():
    shards = [LocalShard(np.arange(3), "auto", origin="same") for _ in range(2)]
    assert all("one name" in str(problem) for problem in together(shards, agree))


@pytest.mark.parametrize("waiting", [[90, 10, 20], [5, 0, 0], [7, 7], [0, 0], [1, 100, 3]])
def test_all_members_take_the_same_number_of_steps(waiting):
    table = shares(waiting, 16)
    assert table.sum(axis=0).tolist() == waiting
    assert all(row.sum() == 16 for row in table[:-1])
    whole = table[:-1] if len(table) > 1 else table
    for column, count in enumerate(waiting):
        assert np.ptp(whole[:, column]) <= 2 if len(whole) else True, count


def test_a_member_without_samples_has_company_that_counts_for_nothing():
    shards = made(10, 0)

    def work(shard, group):
        shard.share_company(group.rank(), group, [10, 0])
        row = shares([10, 0], 4)[0]
        return [
            (shard.take(some, None), piece.weight)
            for some, piece in local_shards.pieces([], row, 1, 0, None)
            if group.rank() == 1
        ]

    _, ((batch, weight),) = together(shards, work)
    assert (len(batch[0]), weight) == (1, 0.0)


def test_an_epoch_trains_each_sample_once_and_goes_on_where_it_was():
    (shard,) = made(20)
    shard.begin_epoch(0, 0)
    order = shard.waiting(3, shuffle=True)
    assert sorted(order) == shard.ids()
    shard.mark(order[:5], 0)
    shard.mark(order[5:10], 1)
    shard.begin_epoch(0, 1)  # the second step was lost with a worker
    assert sorted(shard.waiting(3, shuffle=True)) == sorted(order[5:])
    shard.begin_epoch(1, 0)
    assert len(shard.waiting(3, shuffle=True)) == 20


def test_a_loop_over_declared_data_outside_of_a_job(monkeypatch):
    shard = training.shard((np.arange(10), np.arange(10) * 2), balance="auto")
    seen = [x.tolist() for x, _ in training.batches(shard, 4)]
    assert [len(one) for one in seen] == [4, 4, 2]
    assert sorted(number for one in seen for number in one) == list(range(10))
    assert [len(x) for x, _ in training.batches(shard, 4, train=False)] == [4, 4, 2]
    state = training.State()

    @training.run
    def train(state):
        return [sorted(int(i) for x, _ in training.batches(shard, 4) for i in x) for _ in state.epochs(3)]

    assert train(state) == [list(range(10))] * 3
    monkeypatch.setenv(BALANCE, "ilp")
    assert training.shard(np.arange(3), balance="auto").solver == "ilp"
    assert training.shard(np.arange(3), balance="greedy").solver == "greedy"


def test_a_torch_data_set_gives_tensors_and_sends_a_sample_not_all_that_lies_below_it():
    torch = pytest.importorskip("torch")
    x, y = torch.arange(20_000.0).reshape(200, 100), torch.arange(200)
    whole = torch.utils.data.TensorDataset(x, y)
    content = [torch.utils.data.Subset(whole, range(150)), torch.utils.data.Subset(whole, range(150, 200))]
    shards = [LocalShard(part, "greedy", origin=str(rank)) for rank, part in enumerate(content)]
    message, number = shards[0].pack(shards[0].ids()[:10])
    assert number == 10
    assert len(message) < 10 * 2000, "a row of 400 bytes, and not the 80,000 of which it is a view"
    together(shards, lambda shard, group: transfer(shard, group, {(0, 1): 70}, 1000, never))
    assert [len(shard) for shard in shards] == [80, 120]
    rows, labels = shards[1].take(shards[1].ids(), torch.utils.data.default_collate)
    assert (rows[:, 0] == labels * 100).all()
    assert sorted(int(shard[number][1]) for shard in shards for number in range(len(shard))) == list(range(200))
    first = next(training.batches(training.shard(whole, balance="auto"), 64))
    assert all(isinstance(column, torch.Tensor) for column in first), "as PyTorch's own loaders give them"


def test_data_with_random_transforms_is_known_again_and_draws_as_before():
    torch = pytest.importorskip("torch")

    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 9

        def __getitem__(self, number):
            return drawn()

    def drawn():
        return torch.randn(1).item(), random.random(), np.random.random()  # noqa: NPY002  as transforms do

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    expected = drawn()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002
    one = LocalShard(Noisy(), "auto", origin="a")
    assert drawn() == expected
    assert LocalShard(Noisy(), "auto", origin="a").origin == one.origin, "as after a restart of the worker"


def test_what_can_not_be_taken_by_number_or_not_be_sent_is_refused_with_the_way_out():
    torch = pytest.importorskip("torch")

    class Stream(torch.utils.data.IterableDataset):
        def __len__(self):
            return 3

        def __iter__(self):
            return iter(range(3))

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 2)))
    for ask in (lambda data: training.shard(data, balance="auto"), lambda data: training.batches(data, 2)):
        with pytest.raises(BadRequest, match=r"DataLoader has none.*loader\.dataset"):
            ask(loader)
        with pytest.raises(BadRequest, match=r"set has none.*a list"):
            ask({1, 2})
    with pytest.raises(BadRequest, match=r"Sample 0 of this Stream can't be taken.*__getitem__"):
        training.shard(Stream(), balance="auto")
    with pytest.raises(BadRequest, match=r"can't be sent.*arrays, tensors"):
        training.shard([(np.zeros(2), lambda: 3)] * 9, balance="auto")


def test_what_can_not_be_declared_is_refused_with_the_way_out():
    with pytest.raises(BadRequest, match=r"generator.*tuple of arrays"):
        training.shard((i for i in range(3)), balance="auto")
    with pytest.raises(BadRequest, match="there are auto"):
        training.shard(np.arange(3), balance="best")
    with pytest.raises(BadRequest, match="holds 3 samples already"):
        training.shard(np.arange(3), balance="auto", storage=2)
    with pytest.raises(BadRequest, match="of the 3 samples must stay"):
        training.shard(np.arange(3), balance="auto", pinned=4)


def test_a_tensorflow_data_set_is_read_once_and_an_endless_one_refused():
    tf = pytest.importorskip("tensorflow")
    found = tf.data.Dataset.from_tensor_slices((np.arange(5), np.arange(5) * 2))
    shard = training.shard(found, balance="auto")
    assert [x.tolist() for x, _ in training.batches(shard, 5, shuffle=False)] == [[0, 1, 2, 3, 4]]
    with pytest.raises(BadRequest, match=r"\.take\(n\)"):
        training.shard(found.repeat(), balance="auto")
    batched = training.shard(found.batch(2).prefetch(1), balance="auto")
    assert [x.tolist() for x, _ in training.batches(batched, 5, shuffle=False)] == [[0, 1, 2, 3, 4]]
    assert len(training.shard(found.take(0), balance="auto")) == 0
    nested = tf.data.Dataset.from_tensor_slices(({"a": np.arange(9), "b": np.zeros((9, 2))}, np.arange(9)))
    ((features, labels),) = training.batches(training.shard(nested, balance="auto"), 9, shuffle=False)
    assert features["b"].shape == (9, 2)
    assert features["a"].tolist() == labels.tolist() == list(range(9))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_links_are_measured_each_once_and_no_member_with_two_at_a_time(size):
    groups = pairings(size)
    assert sorted(link for links in groups for link in links) == [
        (a, b) for a in range(size) for b in range(size) if a != b
    ]
    assert all(len({member for link in links for member in link}) == 2 * len(links) for links in groups)
    assert len(groups) == 2 * (size - 1 + size % 2)


def test_all_wait_for_the_exact_solver_only_where_it_can_win_more_than_it_costs():
    pytest.importorskip("scipy")
    declared = [shard.declare() for shard in made(100, 10)]

    def solver(epochs):
        return planned(declared, [100, 10], [1.0, 1.0], ((0, 1e6), (1e6, 0)), 10, epochs, "auto", 5.0)

    assert solver(1).solver == "greedy"
    assert solver(1).without_s == 105.0
    assert planned(declared, [100, 10], [1.0, 1.0], ((0, 1e6), (1e6, 0)), 10, 1, "ilp").solver == "ilp"
    assert solver(1000).total_s == pytest.approx(60_000, rel=0.01)


def test_a_plan_is_said_with_each_hosts_share_speed_and_waiting():
    plan = plan_of([100, 1], [1.0, 3.0], 1e6)
    text = exchange.said(plan, [move.sender for move in plan.moves] + ["b"], [100, 1], [1.0, 3.0], [0.0, 0.75])
    first, one, other = text.splitlines()
    assert first == f"balance: {plan.why}"
    assert " 100 samples, 2" in one
    assert other == "  b: 1 samples, 1 from now on; 3 samples/s, waited 75% of the time"
    many = exchange.said(plan, [str(number) for number in range(20)], [1] * 20, [1.0] * 20, [])
    assert many.splitlines()[-1] == "  and 4 more"


class Link:
    """Bytes take their time, by a clock of the test's own; after so many exchanges more of it."""

    def __init__(self, rates):
        self.rates, self.exchanges, self.now = rates, 0, 0.0

    def carry(self, length):
        self.exchanges += 1
        self.now += length / next(rate for until, rate in self.rates if self.exchanges <= until)


def through(link, monkeypatch, epochs):
    monkeypatch.setattr(exchange, "CHUNK", 2000)
    monkeypatch.setattr(exchange.pace, "clock", lambda: link.now)
    shards = made(400, 10)
    moved = together(shards, lambda shard, group: rebalance(shard, group, (10.0, 10.0), epochs, never), link=link)
    assert moved == [True, True]
    assert contents(shards) == everything(400, 10)
    return shards


def test_where_the_link_becomes_too_slow_for_it_the_rest_stays(monkeypatch):
    shards = through(Link([(15, 1e5), (10_000, 10.0)]), monkeypatch, 2)
    assert 10 < len(shards[1]) < 150
    assert shards[0].links[1][0][1] < 1e4
    assert shards[0].links == shards[1].links


def test_where_the_link_halves_the_rest_is_planned_anew_and_moves(monkeypatch):
    shards = through(Link([(15, 1e5), (10_000, 5e4)]), monkeypatch, 20)
    assert len(shards[1]) == pytest.approx(205, abs=12)
    assert shards[0].links[1][0][1] == pytest.approx(5e4, rel=0.4)
