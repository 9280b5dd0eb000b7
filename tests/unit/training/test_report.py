from __future__ import annotations

import math
import threading

import msgspec
import pytest

from jupyter_elastic import training
from jupyter_elastic.training.context import context
from jupyter_elastic.training.report import Reporter
from jupyter_elastic.training.state import State
from jupyter_elastic.types import Progress


class Slow:
    """A value that must not be read in the step, as a GPU's."""

    reads = 0

    def detach(self):
        return self

    def __float__(self):
        Slow.reads += 1
        return 2.0


@pytest.fixture(autouse=True)
def nothing_reported():
    yield
    module_reporter().forget()
    module_reporter().new_group()


def test_reports_are_coalesced_and_values_read_late(memory, group, monkeypatch):
    clock = iter([10.0, 10.01, 10.02, 10.3, 10.31])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    context.state = State()
    reporter = Reporter()
    assert reporter.report({"loss": 4.0}).metrics == {"loss": 4.0}
    assert reporter.report({"loss": Slow()}) is None
    assert reporter.report({"loss": Slow()}) is None
    assert Slow.reads == 0
    sent = reporter.report({"loss": 0.0, "note": "no number"})
    assert sent.metrics == {"loss": pytest.approx(4 / 3)}
    assert Slow.reads == 2
    assert [p.metrics for p in memory.reports] == [{"loss": 4.0}, {"loss": pytest.approx(4 / 3)}]
    assert reporter.flush() is None


def test_the_first_report_of_a_new_group_goes_out_at_once(memory, group, monkeypatch):
    """Its size is news, and the cell may report nothing else for a while."""
    clock = iter([10.0, 10.01, 10.02])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    context.state = State()
    reporter = Reporter()
    reporter.report({"loss": 4.0})
    assert reporter.report({"loss": 3.0}) is None
    reporter.new_group()
    assert reporter.report({"loss": 2.0}).metrics == {"loss": 2.5}


def test_a_report_that_came_too_soon_is_sent_when_none_follows(memory, group):
    """As before a long evaluation. It is sent as it was reported, whatever the training does meanwhile."""
    torch = pytest.importorskip("torch")
    sent = threading.Event()
    memory.report = lambda progress: (memory.reports.append(progress), sent.set())
    training.report(step=1, loss=4.0)
    sent.clear()
    training.report(step=2, loss=2.0, accuracy=torch.tensor(0.25, requires_grad=True))
    assert sent.wait(30)
    assert [(p.step, p.metrics) for p in memory.reports] == [
        (1, {"loss": 4.0}),
        (2, {"loss": 2.0, "accuracy": 0.25}),
    ]
    assert module_reporter().flush() is None


def test_what_lies_on_a_gpu_is_not_read_by_another_thread(memory, group, monkeypatch):
    clock = iter([10.0, 10.01, 10.3])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    Slow.reads = 0
    reporter = Reporter()
    reporter.report({"loss": 4.0})
    assert reporter.report({"loss": Slow(), "accuracy": 0.5}) is None
    reporter.send_held()
    assert Slow.reads == 0
    assert [(p.step, p.metrics) for p in memory.reports][1:] == [(2, {"loss": 4.0, "accuracy": 0.5})]
    assert reporter.flush() is None
    assert reporter.report({"accuracy": 0.5}).metrics == {"loss": 2.0, "accuracy": 0.5}, "it limits no later report"


def test_step_epoch_samples_and_speed_are_added(memory, group):
    context.state = state = State()
    for state.epoch in state.epochs(2):  # noqa: B020
        for _ in training.batches(list(range(10)), 4):
            last = training.report(loss=1) or module_reporter().flush()
    assert (last.step, last.samples, last.total_samples, last.epochs, last.world_size) == (6, 20.0, 20.0, 2.0, 1)
    assert last.epoch == 2.0
    assert last.samples_per_s is None or last.samples_per_s > 0


def module_reporter():
    import sys

    return sys.modules["jupyter_elastic.training.report"].reporter


def test_the_speed_is_over_a_window_and_of_this_group(monkeypatch):
    reporter = Reporter()
    for at, samples, size in [(0.0, 0, 1), (1.0, 100, 1), (2.0, 300, 1)]:
        reporter.marks.append((at, samples, size))
    assert reporter._speed() == 150.0
    context.state = None
    context.warming_up = True  # two members
    reporter._mark(3.0)
    assert len(reporter.marks) == 1
    assert reporter._speed() is None


def test_a_plain_cell_reports_too(memory):
    reporter = Reporter()
    sent = reporter.report({"accuracy": 0.5, "bad": math.nan})
    assert (sent.step, sent.epoch, sent.metrics["accuracy"]) == (1, None, 0.5)


def test_what_the_pool_would_refuse_is_left_out_and_said_once(memory):
    reporter = Reporter()
    many = {f"m{index}": float(index) for index in range(500)}
    with pytest.warns(UserWarning, match="m100' is not shown: a job has at most 100 metrics") as said:
        sent = reporter.report(many)
    reporter.report(many)  # a second warning would be an error
    assert len(said) == 1
    assert list(sent.metrics) == list(many)[:100]
    assert msgspec.convert(msgspec.to_builtins(sent), Progress) == sent
    for name, why in {"a" * 201: "at most 200 characters", "a\nb": "no control characters"}.items():
        with pytest.warns(UserWarning, match=why):
            assert Reporter().report({name: 1.0, "loss": 2.0}).metrics == {"loss": 2.0}


def test_nothing_is_sent_outside_of_a_job():
    assert Reporter().report({"loss": 1.0}).metrics == {"loss": 1.0}


def test_what_is_reported_seldom_is_shown_as_it_is(monkeypatch):
    now = 10.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    reporter = Reporter()
    for loss in (1.0, 0.5, 0.25):
        now += 1.0
        assert reporter.report({"loss": loss}).metrics == {"loss": loss}
    now += 1.0
    assert reporter.report({"accuracy": 0.9}).metrics == {"loss": 0.25, "accuracy": 0.9}


def test_of_many_values_at_once_the_newest_are_averaged(monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 10.0)
    reporter = Reporter()
    reporter.report({"loss": 1000.0})
    for step in range(100):
        reporter.report({"loss": float(step)})
    assert reporter.flush().metrics == {"loss": sum(range(80, 100)) / 20}
    assert reporter.flush() is None
