"""The reference mode on a toy model: times that can be checked by hand, the two anchors, and our own policies in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pollux import reference, simulator, trace
from benchmarks.pollux.advised import Advised, gather, place
from benchmarks.pollux.profiles import Model, read_models
from jupyter_elastic.scheduler.sim import schedule_metrics
from jupyter_elastic.scheduler.sim.simulation import make_policy
from jupyter_elastic.types import Plan, Size, View
from jupyter_elastic.types.errors import BadRequest
from tests.support import toy


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Model]:
    return read_models(toy.write(tmp_path / "profiles"))


def jobs(tmp_path: Path, models: dict[str, Model], *rows: tuple[str, int, int, int]) -> list[simulator.Training]:
    return trace.read_jobs(toy.trace(tmp_path / "workload.csv", list(rows)), models)


class TestReference:
    def test_one_job_takes_its_restart_and_its_iterations(self, tmp_path: Path, models: dict[str, Model]) -> None:
        run = simulator.simulate(jobs(tmp_path, models, ("a", 10, 1, 32)), reference.Tiresias(), name="las")
        # allocated at 60 s, 30 s of restart, then 300 iterations of 0.42 s, each epoch's end rounded to a second
        (timeline,) = run.timelines
        assert timeline.started == 60
        assert timeline.ended == 60 + 30 + 3 * round(100 * 0.42)
        assert timeline.restarts == 0
        assert timeline.spans == [(60, timeline.ended, 1)]

    def test_tiresias_demotes_what_had_16_gpu_hours(self, tmp_path: Path, models: dict[str, Model]) -> None:
        anchor = reference.Tiresias()
        old, new = jobs(tmp_path, models, ("old", 0, 4, 32), ("new", 60, 4, 32))
        first = anchor.allocate(0, {"old": old}, {}, 1, 4)
        assert first == {"old": [0, 0, 0, 0]}
        both = {"old": old, "new": new}
        almost = anchor.allocate(4 * 3600 - 60, both, first, 1, 4)
        assert almost == first
        assert anchor.allocate(4 * 3600, both, almost, 1, 4) == {"new": [0, 0, 0, 0]}

    def test_tiresias_skips_what_does_not_fit(self, tmp_path: Path, models: dict[str, Model]) -> None:
        rows = jobs(tmp_path, models, ("a", 0, 2, 32), ("b", 0, 4, 32), ("c", 0, 2, 32))
        found = reference.Tiresias().allocate(0, {job.name: job for job in rows}, {}, 1, 4)
        assert found == {"a": [0, 0], "c": [0, 0]}

    def test_optimus_gives_the_next_gpu_to_whom_it_saves_most(self, tmp_path: Path, models: dict[str, Model]) -> None:
        long, short = jobs(tmp_path, models, ("long", 0, 1, 128), ("short", 0, 1, 128))
        short.epoch = 1
        found = reference.Optimus().allocate(0, {"long": long, "short": short}, {}, 1, 3)
        assert {name: len(nodes) for name, nodes in found.items()} == {"long": 2, "short": 1}

    def test_optimus_keeps_the_nodes_of_unchanged_sizes(self, tmp_path: Path, models: dict[str, Model]) -> None:
        (job,) = jobs(tmp_path, models, ("a", 0, 1, 32))
        size = len(reference.Optimus().allocate(0, {"a": job}, {}, 2, 4)["a"])
        held = {"a": [1] * size}
        assert reference.Optimus().allocate(0, {"a": job}, held, 2, 4) == held

    def test_placement_takes_the_emptiest_node_first(self) -> None:
        found = reference.place_on_emptiest({"kept": 3, "new": 5}, {"kept": [0, 0, 0]}, ["new"], 3, 4)
        assert found == {"kept": [0, 0, 0], "new": [1, 1, 1, 1, 2]}

    def test_a_job_that_never_fits_is_told(self, tmp_path: Path, models: dict[str, Model]) -> None:
        with pytest.raises(BadRequest, match=r"never end; do they fit into 1 nodes with 4 GPUs"):
            simulator.simulate(
                jobs(tmp_path, models, ("a", 0, 8, 128)), reference.Tiresias(), name="las", nodes=1, gpus=4
            )

    @pytest.mark.parametrize(("nodes", "gpus"), [(0, 4), (4, 0), (-1, 1)])
    def test_an_empty_pool_is_refused(self, tmp_path: Path, models: dict[str, Model], nodes: int, gpus: int) -> None:
        with pytest.raises(BadRequest, match="give at least one of both"):
            simulator.simulate(
                jobs(tmp_path, models, ("a", 0, 1, 32)), reference.Tiresias(), name="las", nodes=nodes, gpus=gpus
            )

    def test_a_gap_without_jobs_is_skipped(self, tmp_path: Path, models: dict[str, Model]) -> None:
        run = simulator.simulate(
            jobs(tmp_path, models, ("a", 0, 1, 32), ("b", 1_000_001, 1, 32)), reference.Tiresias(), name="las"
        )
        assert run.timelines[1].started == 1_000_020  # the next whole minute
        assert len(run.decisions) < 20


class TestOurs:
    def test_an_elastic_policy_uses_the_pool(self, tmp_path: Path, models: dict[str, Model]) -> None:
        rows = [(f"j{i}", 40 * i, 1, 128) for i in range(8)]
        ours = Advised(make_policy("elastic_fifo"))
        run = simulator.simulate(jobs(tmp_path, models, *rows), ours, name="elastic_fifo", nodes=2, gpus=4)
        rigid = simulator.simulate(jobs(tmp_path, models, *rows), reference.Tiresias(), name="las", nodes=2, gpus=4)
        assert not ours.rejected
        assert schedule_metrics.summary(run)["avg_jct_s"] < schedule_metrics.summary(rigid)["avg_jct_s"]

    def test_the_view_tells_the_truth(self, tmp_path: Path, models: dict[str, Model]) -> None:
        (job,) = jobs(tmp_path, models, ("a", 0, 1, 64))
        view = Advised(make_policy("fifo")).view(60, {"a": job}, {}, 2, 4)
        (seen,) = view.jobs
        assert (seen.min_slots, seen.max_slots, seen.phase) == (1, 8, "queued")
        assert seen.profile.remaining == pytest.approx(64 * 200)
        assert seen.profile.rate(2) == pytest.approx(64 / models["toy"].step_time((2,), 64))
        assert view.capacity == 8

    def test_an_illegal_plan_leaves_everything_as_it_is(self, tmp_path: Path, models: dict[str, Model]) -> None:
        class Greedy:
            name, summary, work_conserving, interval_s = "greedy", "", False, None

            def plan(self, view: View) -> Plan:
                if view.now < 120:
                    return Plan(sizes={view.jobs[0].job: Size(1)})
                return Plan(sizes={view.jobs[0].job: Size(99)})

        ours = Advised(Greedy())  # type: ignore[arg-type]
        run = simulator.simulate(jobs(tmp_path, models, ("a", 0, 1, 32)), ours, name="greedy", nodes=1, gpus=2)
        assert run.timelines[0].restarts == 0
        assert ours.rejected[0].startswith("at 120 s: job 1: 99 workers are not allowed")

    def test_adapting_the_batch_is_faster(self, tmp_path: Path, models: dict[str, Model]) -> None:
        path = toy.trace(tmp_path / "workload.csv", [("a", 0, 1, 32)])
        ends = []
        for adapt in (False, True):
            ours = Advised(make_policy("elastic_fifo"))
            run = simulator.simulate(trace.read_jobs(path, models, adapt=adapt), ours, name="x", nodes=1, gpus=4)
            ends.append(run.end)
        assert ends[1] < ends[0]


def test_place_packs_large_jobs_first_and_keeps_what_stays() -> None:
    held = {"stays": [0, 0, 0], "grows": [1]}
    found = place({"stays": 3, "grows": 5, "small": 1, "none": 0}, held, 3, 4)
    assert found["stays"] == [0, 0, 0]
    assert found["grows"] == [0, 1, 1, 1, 1]
    assert found["small"] == [2]
    assert "none" not in found


def test_spread_jobs_are_brought_together_where_that_pays(tmp_path: Path) -> None:
    long = read_models(toy.write(tmp_path / "profiles", epochs=40))
    (job,) = jobs(tmp_path, long, ("a", 0, 4, 128))
    spread = {"a": [0, 0, 1, 1]}
    found = {"a": [0, 0, 1, 1], "b": [1, 1]}
    gather(found, spread | {"b": [1, 1]}, {"a": job, "b": job}, 2, 4)
    assert found == {"a": [0, 0, 0, 0], "b": [1, 1]}
    full = {"a": [0, 0, 1, 1], "b": [0, 0, 1, 1]}
    gather(full, dict(full), {"a": job, "b": job}, 2, 4)
    assert full["a"] == [0, 0, 1, 1]  # there is no room
    job.progress, job.epoch = 3999.0, 39
    late = {"a": [0, 0, 1, 1]}
    gather(late, spread, {"a": job}, 2, 4)
    assert late == spread  # it isn't worth a restart any more
