"""An engine says what it can do in one place; an engine of the first version, with an attribute for each, still can."""

from __future__ import annotations

from typing import Any

import pytest


class Old:
    """An engine as the first version's authors wrote it."""

    name = "old"
    takes_cells = False
    sessions = True
    library = ("mpi4py",)
    worker = "old_engine:OldWorker"

    @classmethod
    def missing(cls) -> str:
        return "it needs MPI"

    def __init__(self, *_: Any) -> None:
        self.made = True

    def waits(self) -> str:
        return "rank 0 waits"


def test_the_attributes_of_an_old_engine_are_its_capabilities() -> None:
    from jupyter_elastic.types.capabilities import Capabilities, capabilities_of

    found = Capabilities(takes_cells=False, sessions=True, library=("mpi4py",), worker="old_engine:OldWorker")
    assert capabilities_of(Old) == found
    assert capabilities_of(Old()) == found


def test_an_engine_s_own_capabilities_count_and_not_its_attributes() -> None:
    from jupyter_elastic.types.capabilities import Capabilities, capabilities_of

    class Both(Old):
        capabilities = Capabilities(spans_hosts=False)

    assert capabilities_of(Both) == Capabilities(spans_hosts=False)


def test_an_old_engine_is_given_what_it_leaves_out_and_keeps_what_it_has() -> None:
    from jupyter_elastic.driver.engine import Engine, completed
    from jupyter_elastic.jobfiles.cell_hints import CellText

    engine: Any = completed(Old)
    assert (engine.name, engine.missing(), engine.capabilities.sessions) == ("old", "it needs MPI", True)
    assert (engine.claim(CellText()), engine.examine()) == (None, None)
    made = engine(None, print)
    assert isinstance(made, Old)
    assert made.made
    assert (made.waits(), made.kept(), made.remote_usage().workers) == ("rank 0 waits", frozenset(), [])

    class Whole(Engine):
        name = "whole"

    assert completed(Whole) is Whole


@pytest.mark.parametrize("name", ["process", "torch", "horovod", "tensorflow_ps", "functions"])
def test_an_engine_of_the_house_has_no_other_attributes_of_these_names(name: str) -> None:
    from jupyter_elastic.platform import entry_points
    from jupyter_elastic.types.capabilities import Capabilities

    engine = entry_points.load(entry_points.installed(entry_points.ENGINES)[name])
    assert isinstance(engine.capabilities, Capabilities)
    assert not [field for field in Capabilities.__struct_fields__ if hasattr(engine, field)]
