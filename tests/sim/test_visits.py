"""The simulator's hosts that come and go."""

from __future__ import annotations

import pytest

from jupyter_elastic.scheduler.sim.sim_command import main
from jupyter_elastic.scheduler.sim.simulated_hosts import pool, visiting
from jupyter_elastic.scheduler.sim.simulation import Costs, Simulation, make_policy
from jupyter_elastic.scheduler.sim.workload import TraceJob
from jupyter_elastic.types import DrainsChanged, HostsChanged, JobEnded, JobStarted, RescaleRequested
from jupyter_elastic.types.errors import BadRequest


def simulated(task: TraceJob, visits: str) -> Simulation:
    options = {"cooldown": 0.0, "payback": 0.0}
    run = Simulation(
        [task], make_policy("elastic_fifo", options), "elastic_fifo", pool(1, 1), options=options,
        costs=Costs(start=1.0, rescale=1.0), visits=visiting(visits, 1), keep_events=True,
    )  # fmt: skip
    run.run()
    return run


def test_an_elastic_job_takes_hosts_while_they_are_there_and_leaves_them_before_they_go() -> None:
    run = simulated(TraceJob(name="j", submitted=0.0, work=3000.0, speed=float, max_slots=4), "2@100:1000")
    sizes = [
        (round(event.at, 2), len(event.data.slots))
        for event in run.events
        if isinstance(event.data, JobStarted | RescaleRequested)
    ]
    assert sizes == [(0.0, 1), (100.0, 3), (880.0, 1)]
    assert sum(isinstance(event.data, DrainsChanged) for event in run.events) >= 2
    assert [event.at for event in run.events if isinstance(event.data, HostsChanged)] == [0.0, 100.0, 1000.0]
    [end] = [event for event in run.events if isinstance(event.data, JobEnded)]
    assert end.at == pytest.approx(3000.0 - 2 * 780.0 + 5.0, abs=5.0)


def test_a_fixed_job_that_says_it_takes_longer_is_not_put_on_a_host_that_goes() -> None:
    """It would be there alone, and waits for the node that stays."""
    first = TraceJob(name="a", submitted=0.0, work=500.0, speed=float, max_slots=1)
    long = TraceJob(name="b", submitted=150.0, work=5000.0, speed=float, max_slots=1, estimate=5000.0)
    options = {"cooldown": 0.0, "payback": 0.0}
    run = Simulation(
        [first, long], make_policy("elastic_fifo", options), "elastic_fifo", pool(1, 1), options=options,
        visits=visiting("1@100:1000", 1), keep_events=True,
    )  # fmt: skip
    run.run()
    starts = {event.data.job: event.data.slots for event in run.events if isinstance(event.data, JobStarted)}
    assert starts == {1: ("node0:0",), 2: ("node0:0",)}


@pytest.mark.parametrize("text", ["", "4", "0@1:2", "4@9:3", "4@5:5", "x@1:2", "4@1:2:3", "-1@1:2"])
def test_what_is_no_visit_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadRequest, match="as in 4@3600:7200"):
        visiting(text, 4)
    assert main(["--synthetic", "5", f"--extra-nodes={text}", "--policy", "fifo"]) == 2
    assert "as in 4@3600:7200" in capsys.readouterr().err


def test_the_command_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--synthetic", "20", "--nodes", "1", "--policy", "default", "--extra-nodes", "2@10:100000", "--json"]
    assert main(words) == 0
    more = capsys.readouterr().out
    assert main([*words[:6], "--json"]) == 0
    assert more != capsys.readouterr().out


@pytest.mark.parametrize(("nodes", "each", "took"), [(1, 2, 101.0), (2, 1, 201.0)])
def test_links_slow_down_a_job_on_several_nodes(nodes: int, each: int, took: float) -> None:
    task = TraceJob(name="j", submitted=0.0, work=200.0, speed=float, min_slots=2, max_slots=2)
    policy = make_policy("fifo", {})
    run = Simulation([task], policy, "fifo", pool(nodes, each), costs=Costs(start=1.0), across=0.5, keep_events=True)
    run.run()
    [end] = [event for event in run.events if isinstance(event.data, JobEnded)]
    assert end.at == pytest.approx(took, abs=0.1)


@pytest.mark.parametrize("part", ["0", "-1", "1.5", "nan"])
def test_a_speed_across_nodes_that_is_no_part_is_refused(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--synthetic", "5", f"--across-nodes={part}", "--policy", "fifo"]) == 2
    assert "above 0 and at most 1" in capsys.readouterr().err
