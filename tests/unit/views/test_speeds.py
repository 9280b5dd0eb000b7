"""What a job's view learns of its speeds: by size, with what the regression predicts for the others."""

from __future__ import annotations

import pytest

from jupyter_elastic.types import AnyEventData, Event, JobProgressed, JobRunning, JobStarted, Progress, RescaleRequested
from jupyter_elastic.views.speeds import Speeds


class Story:
    """Events of a job, one a second."""

    def __init__(self) -> None:
        self.speeds = Speeds()
        self.at = 0.0
        self.generation = 0

    def tell(self, data: AnyEventData) -> None:
        self.at += 1.0
        self.speeds.fold(Event(seq=int(self.at), at=self.at, by="", cause="", data=data))

    def trains(self, workers: int, servers: int, rate: float) -> None:
        self.generation += 1
        slots = tuple(f"h:{number}" for number in range(workers + servers))
        order = JobStarted if self.generation == 1 else RescaleRequested
        self.tell(order(job=1, attempt=1, generation=self.generation, slots=slots, servers=servers))
        self.tell(JobRunning(job=1, attempt=1, generation=self.generation, slots=slots))
        for _ in range(4):
            self.tell(JobProgressed(job=1, attempt=1, progress=Progress(samples_per_s=rate)))


def seconds(workers: int, servers: int) -> float:
    return 1 / workers + 0.1 + 0.2 * workers / servers + 0.01 * (workers + servers)


def test_one_size_says_nothing_of_others() -> None:
    story = Story()
    assert story.speeds.fit(4, 0) is None
    story.trains(1, 0, 100.0)
    assert story.speeds.fit(4, 0) is None


def test_all_reduce_sizes_are_measured_and_the_others_predicted() -> None:
    story = Story()
    for workers in (1, 2, 4):
        story.trains(workers, 0, 1000 / (1 / workers + 0.1))
    fit = story.speeds.fit(6, 0)
    assert fit is not None
    assert fit.form == "allreduce"
    assert [(size.workers, size.servers) for size in fit.sizes] == [(workers, 0) for workers in range(1, 7)]
    assert [size.measured is not None for size in fit.sizes] == [True, True, False, True, False, False]
    for size in fit.sizes:
        assert size.predicted == pytest.approx(1000 / (1 / size.workers + 0.1), rel=0.1)
    assert fit.error < 0.1


def test_servers_have_predictions_of_their_own() -> None:
    story = Story()
    for size in ((1, 1), (2, 1), (2, 2), (3, 2)):
        story.trains(*size, 100 / seconds(*size))
    fit = story.speeds.fit(3, 2)
    assert fit is not None
    assert [(size.workers, size.servers) for size in fit.sizes] == [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)]
    for size in fit.sizes:
        assert size.predicted == pytest.approx(100 / seconds(size.workers, size.servers), rel=0.35)


def test_a_size_beyond_the_allowed_ones_is_shown_as_it_was_measured() -> None:
    story = Story()
    story.trains(8, 0, 500.0)
    story.trains(1, 0, 100.0)
    fit = story.speeds.fit(2, 0)
    assert fit is not None
    assert [(size.workers, size.measured) for size in fit.sizes] == [(1, 100.0), (2, None), (8, 500.0)]
