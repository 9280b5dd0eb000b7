"""A group and a session of our own making, so that every path of a state can be walked in one process."""

from __future__ import annotations

import pytest

from jupyter_elastic.training import link
from jupyter_elastic.training.context import TrainingContext, context
from jupyter_elastic.training.group import PeerLost, SingleProcess


class MemorySession:
    """A session that keeps what it is given."""

    engine = "memory"

    def __init__(self):
        self.groups = OneGroups()
        self.kept = None
        self.durable = []
        self.reports = []
        self.change = False
        self.training = 0
        self.outcomes = {}

    def begin_cell(self):
        """A worker begins the cell from its top."""
        self.training = 0

    def write_training(self, *outcome):
        self.written = b"".join(outcome)

    def keep_training(self):
        self.outcomes[self.training] = self.written

    def finished(self):
        kept = self.outcomes.get(self.training)
        return None if kept is None else memoryview(kept)

    def report(self, progress):
        self.reports.append(progress)

    def save(self, *commit, durable=False):
        self.kept = b"".join(commit)
        self.durable.append(durable)

    def load(self):
        return None if self.kept is None else memoryview(self.kept)

    def change_wanted(self):
        return self.change

    def show(self, bundle, name, *, again):
        self.shown = [*getattr(self, "shown", []), (bundle, name, again)]

    def collective(self, step):
        pass

    def leave(self):
        pass


class OneGroup(SingleProcess):
    """A group with one member that can change: all that a state sees of an engine at size 1."""

    elastic = True


class OneGroups:
    """An engine's groups: one, for every framework."""

    def group(self, framework):
        return OneGroup()

    def formed(self):
        return None

    def peer_lost(self, error):
        return error if isinstance(error, PeerLost) else None


@pytest.fixture
def memory(monkeypatch):
    made = MemorySession()
    monkeypatch.setattr(link, "current", made)
    monkeypatch.setenv("WORLD_SIZE", "1")
    return made


@pytest.fixture
def group(memory):
    context.group = OneGroup()
    yield context.group
    context.group = None


@pytest.fixture(autouse=True)
def at_rest():
    """No test leaves the loop elsewhere than it found it."""
    yield
    for name, value in vars(TrainingContext()).items():
        setattr(context, name, value)
