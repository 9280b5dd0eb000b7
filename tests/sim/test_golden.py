"""The published average JCTs of Tiresias and Optimus (Pollux, OSDI 2021, artifact), to the last digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pollux import simulator, trace
from benchmarks.pollux.__main__ import DATA
from benchmarks.pollux.__main__ import PUBLISHED as PUBLISHED_POLICIES
from benchmarks.pollux.profiles import Model, read_models
from jupyter_elastic.scheduler.sim import schedule_metrics
from tests.support import traces

PUBLISHED = {
    ("0.5", "las"): ("1450.94", "2333.28", "1869.90", "1946.76"),
    ("0.5", "optimus"): ("1309.69", "3124.56", "1986.84", "2173.86"),
    ("1.0", "las"): ("2473.65", "5144.96", "3876.26", "3280.26"),
    ("1.0", "optimus"): ("4087.06", "6913.88", "3944.01", "5967.75"),
    ("1.5", "las"): ("5520.29", "6333.77", "6561.98", "5577.32"),
    ("1.5", "optimus"): ("7673.84", "6678.19", "5683.62", "7683.79"),
    ("2.0", "las"): ("10138.17", "8655.99", "10727.82", "9664.73"),
    ("2.0", "optimus"): ("10806.60", "8515.39", "8363.36", "10312.91"),
}


IN_THE_REPOSITORY = ("0.5", 3)


def average_turnaround(policy: str, workload: Path, models: dict[str, Model]) -> str:
    jobs = trace.read_jobs(workload, models)
    run = simulator.simulate(jobs, PUBLISHED_POLICIES[policy](), name=policy)
    return f"{schedule_metrics.summary(run)['avg_jct_s']:.2f}"


@pytest.mark.parametrize("policy", ["las", "optimus"])
def test_the_data_of_the_repository_give_the_published_figure(policy: str) -> None:
    load, number = IN_THE_REPOSITORY
    found = average_turnaround(policy, DATA / f"workload-{number}.csv", read_models(DATA / "profiles"))
    assert found == PUBLISHED[load, policy][number - 1]


@traces.needs_traces
def test_the_data_of_the_repository_are_a_part_of_the_public_ones() -> None:
    load, number = IN_THE_REPOSITORY
    ours, theirs = DATA / f"workload-{number}.csv", traces.pollux(load, number)
    assert ours.read_bytes() == theirs.read_bytes()
    for table in DATA.glob("profiles/*/*.csv"):
        whole = (traces.PROFILES / table.parent.name / table.name).read_text().splitlines()
        assert set(table.read_text().splitlines()) <= set(whole), table


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return read_models(traces.PROFILES)


@traces.needs_traces
@pytest.mark.parametrize(("load", "policy"), PUBLISHED)
def test_the_whole_public_data_give_the_published_figures(load: str, policy: str, models: dict[str, Model]) -> None:
    found = tuple(average_turnaround(policy, traces.pollux(load, number), models) for number in (1, 2, 3, 4))
    assert found == PUBLISHED[load, policy]
