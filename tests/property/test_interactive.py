"""An interactive job under every policy, in random histories: elastic jobs make room, no other job loses its slots."""

from __future__ import annotations

import os

import pytest

from jupyter_elastic.scheduler.core.rules.interactive import room
from jupyter_elastic.scheduler.core.state import least_workers
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.types import (
    Event,
    JobStarted,
    JobSubmitted,
    PlanRejected,
    Propose,
    RescaleRequested,
    Stimulus,
    StopRequested,
    Submit,
    UsePolicy,
)
from tests.support.harness import job_spec
from tests.support.histories import OWNERS, World

POLICIES = sorted(info.name for info in plugins.policy_infos("fifo", {}))
HISTORIES = 30 if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else 4


class Pool(World):
    """A world in which a real policy decides."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(seed)
        self.policy = plugins.make_policy(name, {})
        self.step(UsePolicy, name=name)

    def command(self) -> None:
        if self.core.state.jobs and self.random.random() < 0.2:
            super().command()

    def propose(self) -> None:
        plan = self.policy.plan(self.core.view(self.now))
        events = self.step(Propose, policy=self.core.state.policy, plan=plan)
        assert not any(isinstance(event.data, PlanRejected) for event in events), events

    def tell(self, stimulus: Stimulus) -> tuple[Event, ...]:
        before = {job.job: job.size.workers for job in self.core.state.active_jobs()}
        events = super().tell(stimulus)
        for data in (event.data for event in events):
            if isinstance(data, StopRequested) and data.how == "preempt" and isinstance(stimulus, Propose):
                assert not self.core.state.jobs[data.job].spec.interactive, "no policy pauses an interactive job"
            elif isinstance(data, StopRequested):
                assert not isinstance(stimulus, Submit), "nobody loses all for it"
            elif isinstance(data, RescaleRequested) and data.yielded:
                job = self.core.state.jobs[data.job]
                workers = len(data.slots) - data.servers
                assert job.elastic, "only a job that can regroup shrinks"
                assert least_workers(job.spec) <= workers or workers > before[data.job]
        return events

    def shrinkable(self) -> int:
        """Slots that elastic jobs hold beyond their least."""
        return sum(
            1
            for job in self.core.state.active_jobs()
            if job.phase in ("running", "rescaling")
            and not job.rigid
            and not self.core.state.absent(job.owner)
            and job.largest(job.size.workers - 1)
        )

    def wait_for(self, least: int) -> None:
        """An interactive job comes to a pool in any state. Where elastic jobs can make room it starts."""
        owner = self.random.choice(OWNERS)
        self.connect(owner, connected=True)
        earlier = (self.core.state.jobs[job].phase in ("queued", "stopping") for job in self.core.state.interactive)
        possible = not any(earlier) and (room(self.core.state) >= least or (least == 1 and self.shrinkable() > 0))
        events = self.step(Submit, by=owner, spec=job_spec(least, least, interactive=True))
        assert isinstance(events[0].data, JobSubmitted)
        job = events[0].data.job
        assert not any(isinstance(event.data, StopRequested) for event in events)
        for _ in range(3):
            self.propose()
        self.quiesce()
        if possible and not self.core.state.retained(exclusive=True):  # a session may have kept what was to come free
            started = {event.data.job for event in self.events if isinstance(event.data, JobStarted)}
            assert job in started, self.core.explain(job, self.now)


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize("name", POLICIES)
def test_it_starts_where_elastic_jobs_can_make_room_and_nobody_is_paused(name: str, seed: int) -> None:
    pool = Pool(name, seed)
    for _ in range(6):
        pool.play(40)
        pool.wait_for(pool.random.choice((1, 1, 2)))
    pool.calm()
