"""Epochs that are trained again, and data that stay split for a group that is no more: both are said."""

from __future__ import annotations

import linecache

import pytest

from jupyter_elastic import training
from jupyter_elastic.training import splits
from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import SingleProcess
from jupyter_elastic.training.state import State, commits_of
from jupyter_elastic.types.errors import BadRequest


class Elastic:
    """A group of one that can change."""

    elastic, shards, provisional = True, False, False

    def __getattr__(self, name):
        return getattr(SingleProcess(), name)


def trained(memory, commit, data=lambda: None):
    """The epochs that a loop trains, when the group changes at the commit after epoch 2."""
    memory.groups.group = lambda framework: Elastic()
    epochs = []

    @training.run
    def train(state):
        for state.epoch in state.epochs(4):  # noqa: B020
            epochs.append(state.epoch)
            memory.change = False
            data()
            memory.change = epochs == [0, 1, 2]
            commit(state)

    train(State())
    return epochs


def test_an_epoch_of_other_data_that_begins_again_is_said_once(memory, capsys):
    assert trained(memory, lambda state: state.commit()) == [0, 1, 2, 2, 3]
    err = capsys.readouterr().err
    assert err.count("note: epoch 2 begins again") == 1
    assert "state.commit(epoch_done=True)" in err


def test_an_epoch_that_is_said_to_be_done_is_not_trained_again(memory, capsys):
    assert trained(memory, lambda state: state.commit(epoch_done=True)) == [0, 1, 2, 3]
    assert trained(memory, lambda state: training.commit(epoch_done=True)) == [0, 1, 2, 3]
    assert capsys.readouterr().err == ""


def test_an_epoch_with_batches_is_not_spoken_of(memory, capsys):
    assert trained(memory, lambda state: state.commit(), lambda: list(training.batches([1, 2], 2))) == [0, 1, 2, 3]
    assert "begins again" not in capsys.readouterr().err


def test_after_a_death_the_next_attempt_knows_that_the_epoch_is_done(memory, group):
    context.state = state = State()
    for state.epoch in state.epochs(3):  # noqa: B020
        state.commit(epoch_done=True)
        break
    context.state = again = State()
    memory.training = 0
    commits_of(again).sync()
    assert again.epoch == 1


def test_an_epoch_is_done_within_a_loop_over_epochs_only():
    with pytest.raises(BadRequest, match=r"within `for state.epoch in state.epochs"):
        State().commit(epoch_done=True)


SPLITS = {
    "slice": "mine = data[rank::world_size]",
    "bounds": "mine = data[rank * 10 // world_size : (rank + 1) * 10 // world_size]",
    "own names": "rank, size = training.rank(), training.size()\nmine = data[rank::size]",
    "modulo": "mine = [x for i, x in enumerate(data) if i % world_size == rank]",
    "datasets": "mine = split_dataset_by_node(data, rank=rank, world_size=world_size)",
    "tf.data": "mine = data.shard(hvd.size(), hvd.rank())",
    "torchrun": "mine = islice(data, int(os.environ['RANK']), None, int(os.environ['WORLD_SIZE']))",
    "in a function": "def main():\n    mine = data[rank::world_size]\n    change()\nmain()",
}
FINE = {
    "shown": "print('rank', rank, 'of', world_size)",
    "in the training function": "def train(state):\n    mine = data[rank::world_size]",
    "afterwards": "change()\nmine = data[rank::world_size]",
    "local samples": "mine = training.shard(data[rank::world_size], balance='auto')",
    "another slice": "mine = data[:world_size]",
    "a group": "init_process_group(rank=rank, world_size=world_size)",
}


class Anything:
    """Stands for whatever a cell calls."""

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __getitem__(self, what):
        return self

    def __iter__(self):
        return iter([self, self])

    def __index__(self):
        return 1

    __int__ = __index__


def noted(cell, capsys, sizes=(2, 1)):
    splits.begin_cell()
    text = cell + ("" if "change()" in cell else "\nchange()") + "\n"
    linecache.cache["<In[9]>"] = (len(text), None, text.splitlines(keepends=True), "<In[9]>")

    def change():
        for size in sizes:
            splits.joined(0, size)

    thing = Anything()
    names = dict.fromkeys(("hvd", "split_dataset_by_node", "islice", "init_process_group", "training", "os"), thing)
    names |= {
        "__name__": "__main__",
        "change": change,
        "rank": 0,
        "world_size": 2,
        "data": list(range(10)),
        "os": thing,
    }
    if ".shard(" in cell and "hvd" in cell:
        names["data"] = thing
    exec(compile(text, "<In[9]>", "exec"), names)
    return capsys.readouterr().err


@pytest.mark.parametrize("cell", SPLITS.values(), ids=SPLITS)
def test_data_that_stay_split_for_the_old_group_are_said_once(cell, capsys):
    err = noted(cell, capsys, (2, 1, 3))
    assert err.count("note: ") == 1
    assert "split the data for 2 workers" in err
    assert cell.splitlines()[-1 if cell.startswith("rank") else 1 if "main" in cell else 0].strip() in err


@pytest.mark.parametrize("cell", FINE.values(), ids=FINE)
def test_what_is_no_split_is_not_spoken_of(cell, capsys):
    assert noted(cell, capsys) == ""


def test_a_group_that_forms_is_no_change(capsys):
    assert noted(SPLITS["slice"], capsys, (2,)) == ""
    assert noted(SPLITS["slice"], capsys, (2, 2)) == ""
