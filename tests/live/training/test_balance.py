"""Workers that are not equally fast: their shares follow their speeds, and the learning curve stays what it is."""

from __future__ import annotations

import json
import os
from collections import defaultdict

import pytest

from tests.live.training.test_elastic import FRAMEWORKS, check, hurry, make, once, run, static  # noqa: F401

CLOCK = """
from jupyter_elastic.training.pace import pace
clock = [0.0]                                               # speeds are what the cell says, however busy the machine is
pace.clock = lambda: clock[0]
"""
SLOW = """
            if not context.warming_up:
                clock[0] += len(x) * (0.003 if int(os.environ["LOCAL_RANK"]) == 1 else 0.001)
                with open(f"{FOLDER}/shares", "a") as file:
                    file.write(json.dumps([state.step, training.rank(), len(x)]) + "\\n")
"""


def slowed(source):
    """The cell on workers of two speeds, with shares by them."""
    source = CLOCK + source
    computes = next(line for line in source.splitlines(keepends=True) if line.strip().startswith("loss = "))
    return source.replace(computes, SLOW + computes).replace("micro_batch=MICRO)", 'micro_batch=MICRO, balance="auto")')


for name in ("torch", "torch.distributed", "torch.distributed wrapped", "keras"):
    FRAMEWORKS[f"{name} slowed"] = slowed(FRAMEWORKS[name])


def shares(bench):
    """Samples by step (from 0) and rank, of the last time that it was trained."""
    found = defaultdict(dict)
    for line in (bench.folder / "shares").read_text().splitlines():
        step, rank, samples = json.loads(line)
        found[step][rank] = samples
    return found


MORE = ("torch.distributed wrapped", "keras") if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else ()


@pytest.mark.parametrize("framework", ["torch", "torch.distributed", *MORE])
def test_shares_follow_the_speeds_through_a_rescale(framework, static, tmp_path):  # noqa: F811
    expected = static("keras" if framework == "keras" else "torch.distributed")

    async def story(bench):
        await bench.launch("h:0")
        first = await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2, first["at"])
        hurry(bench)
        await bench.ended()
        check(bench, expected)
        assert once(bench)

    bench = make(f"{framework} slowed", tmp_path)
    run(story, bench)
    of_two = [sorted(of.values()) for _, of in sorted(shares(bench).items()) if len(of) == 2 and sum(of.values()) == 25]
    assert of_two[0] == [12, 13], "a new group begins with equal shares"
    assert of_two[-1] == [6, 19], "the shares are as the speeds, 1 to 3"
