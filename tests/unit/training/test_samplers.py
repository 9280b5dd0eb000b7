"""A `DistributedSampler` that was made before a change splits for the new group, where that is what it did before."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

CELL = """
import pickle, sys
from jupyter_elastic.training.frameworks import imported, samplers
imported.guard()
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
samplers.follow(0, 1)
"""


def says(text: str) -> tuple[str, str]:
    """What a process of its own prints, and writes to stderr."""
    done = subprocess.run([sys.executable, "-c", CELL + text], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip(), done.stderr.strip()


def test_parts_are_those_of_the_new_group_and_all_else_stays() -> None:
    out, errors = says("""
data = list(range(10))
sampler = DistributedSampler(data, num_replicas=1, rank=0, seed=7, drop_last=True)
loader = DataLoader(data, batch_size=1, sampler=sampler)
sampler.set_epoch(3)
samplers.follow(2, 3)
fresh = DistributedSampler(data, num_replicas=3, rank=2, seed=7, drop_last=True)
fresh.set_epoch(3)
assert list(sampler) == list(fresh) and len(loader) == len(fresh) == 3
samplers.follow(0, 2)
print(sampler.num_replicas, sampler.rank, sampler.epoch, sampler.total_size, len(loader))
""")
    assert out == "2 0 3 10 5"
    assert errors == "note: a DistributedSampler that was made for a group of 3 splits for 2 workers now"


def test_one_for_other_parts_than_the_workers_is_left_alone() -> None:
    assert says("""
samplers.follow(1, 4)
mine = DistributedSampler(range(8), num_replicas=4, rank=1)
others = [DistributedSampler(range(8), num_replicas=2, rank=1), DistributedSampler(range(8), num_replicas=4, rank=0)]
samplers.follow(1, 2)
print([(one.num_replicas, one.rank) for one in (mine, *others)])
""") == ("[(2, 1), (2, 1), (4, 0)]", "")


def test_of_a_kind_of_the_users_own_it_is_said_that_it_splits_as_before() -> None:
    out, errors = says("""
class Mine(DistributedSampler):
    def __init__(self, dataset):
        super().__init__(dataset, num_replicas=1, rank=0)
        self.half = self.num_samples // 2
sampler = Mine(range(8))
samplers.follow(1, 2)
print(sampler.num_replicas, sampler.half)
""")
    assert out == "1 4"
    assert "a Mine, made when this worker was rank 0 of 1, splits so still; it is rank 1 of 2 now" in errors


def test_one_that_rank_0_hands_over_is_the_newcomers_own() -> None:
    given = says("sys.stdout.write(pickle.dumps(DistributedSampler(range(9), num_replicas=1, rank=0)).hex())")[0]
    assert says(f"""
sampler = pickle.loads(bytes.fromhex("{given}"))
samplers.handed_over(0, 1)
samplers.follow(2, 3)
print(sampler.rank, sampler.num_replicas, len(sampler))
""") == ("2 3 3", "")
