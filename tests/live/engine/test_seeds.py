"""Random numbers differ by worker and by job, and are the same again with `--seed`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.engines.process import Process
from tests.live.engine.bench import Bench, asynchronous, needs

PLAIN = "import random, numpy\nfound = [random.random(), numpy.random.random()]\n"
TORCH = PLAIN + "import torch\nfound += [torch.initial_seed(), torch.rand(1).item()]\n"
TENSORFLOW = PLAIN + (
    "import tensorflow as tf, keras, tf_keras\n"
    "found += [float(tf.random.uniform([])), float(keras.random.uniform([]))]\n"
    "found += [float(kind.initializers.GlorotUniform()((1, 1))[0, 0]) for kind in (keras, tf_keras)]\n"
    "found.append(float(tf_keras.backend.random_uniform([])))\n"
)


async def numbers(folder: Path, source: str, *, warm: bool, seed: int | None = None) -> list[list[Any]]:
    """What each of two ranks drew."""
    async with Bench(Process, folder, source, out=("found",), warm=warm, seed=seed) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        return [bench.results()[rank]["found"] for rank in (0, 1)]


cells = pytest.mark.parametrize(
    ("source", "warm"),
    [
        pytest.param(PLAIN, False, id="no framework"),
        pytest.param(TORCH, True, id="torch", marks=needs("torch")),
        pytest.param(TORCH, False, id="torch, imported by the cell", marks=needs("torch")),
        pytest.param(TENSORFLOW, True, id="tensorflow", marks=needs("tensorflow")),
    ],
)


@cells
@asynchronous
async def test_every_rank_of_every_job_has_its_own(folder: Path, source: str, *, warm: bool) -> None:
    drawn = await numbers(folder, source, warm=warm) + await numbers(folder.parent / "again", source, warm=warm)
    for same in zip(*drawn, strict=True):
        assert len(set(same)) == 4, drawn


@cells
@asynchronous
async def test_a_seed_makes_a_job_repeatable(folder: Path, source: str, *, warm: bool) -> None:
    first = await numbers(folder, source, warm=warm, seed=7)
    assert first == await numbers(folder.parent / "again", source, warm=warm, seed=7)
    for one, other in zip(*first, strict=True):
        assert one != other
    next_seed = await numbers(folder.parent / "next", source, warm=warm, seed=8)
    assert next_seed[0] == first[1]  # rank r has seed + r
