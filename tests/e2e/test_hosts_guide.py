"""Who follows the page about other hosts, and nothing else, has a job on two machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import machines
from tests.support.marks import everything


@everything
@pytest.mark.timeout(1000)
@pytest.mark.skipif(bool(machines.why_not()), reason=machines.why_not())
def test_a_cell_on_a_machine_that_was_added_by_the_commands_of_the_page() -> None:
    pytest.importorskip("torch")
    print(machines.run(Path(__file__).with_name("hosts_guide_story.py"), timeout_s=900))  # noqa: T201
