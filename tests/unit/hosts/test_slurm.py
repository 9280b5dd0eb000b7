"""What Slurm's commands say of an allocation."""

from __future__ import annotations

import re

import pytest

from jupyter_elastic.hosts.providers import slurm as allocation
from jupyter_elastic.types.errors import BadRequest


def test_an_allocation_that_runs_has_nodes_and_an_end() -> None:
    assert allocation.parsed("4711", "RUNNING|lab[1-2,7]|1795486863\n") == (1795486863.0, "lab[1-2,7]")
    assert allocation.parsed("4711", "RUNNING|lab1|NONE\n") == (None, "lab1")


@pytest.mark.parametrize(
    ("listed", "said"),
    [("", "is none that Slurm knows"), ("PENDING||N/A", "is pending"), ("CANCELLED|lab1|1795486863", "is cancelled"),
     ("rubbish", "is rubbish")],
)  # fmt: skip
def test_one_that_does_not_run_is_refused(listed: str, said: str) -> None:
    with pytest.raises(BadRequest, match=f"allocation 4711 {said}; `squeue --me` lists yours"):
        allocation.parsed("4711", listed)


def test_the_number_is_given_or_that_of_the_allocation_around() -> None:
    assert allocation.number_of("slurm:", {"SLURM_JOB_ID": "4711"}) == "4711"
    assert allocation.number_of("slurm:12", {"SLURM_JOB_ID": "4711"}) == "12"
    with pytest.raises(BadRequest, match=re.escape("($SLURM_JOB_ID is not set)")):
        allocation.number_of("slurm:", {})
    for target in ("slurm:-w", "slurm:1,2", "slurm://1/lab1", "slurm:1_2", "slurm:\u0664"):
        with pytest.raises(BadRequest, match="is no number of an allocation"):
            allocation.number_of(target, {})
