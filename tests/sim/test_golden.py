"""The published average JCTs of Tiresias and Optimus (Pollux, OSDI 2021, artifact), to the last digit."""

from __future__ import annotations

import pytest

from benchmarks.pollux import reference, simulator, trace
from benchmarks.pollux.profiles import Model, read_models
from jupyter_elastic.scheduler.sim import metrics
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


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return read_models(traces.PROFILES)


@traces.needs_traces
@pytest.mark.parametrize(("load", "policy"), PUBLISHED)
def test_reference_reproduces_the_published_figure(load: str, policy: str, models: dict[str, Model]) -> None:
    found = []
    for number in (1, 2, 3, 4):
        jobs = trace.read_jobs(traces.pollux(load, number), models)
        anchor = reference.Tiresias() if policy == "las" else reference.Optimus()
        run = simulator.simulate(jobs, anchor, name=policy)
        found.append(f"{metrics.summary(run)['avg_jct_s']:.2f}")
    assert tuple(found) == PUBLISHED[load, policy]
