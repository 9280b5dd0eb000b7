"""Who takes whose state: newcomers rank 0's in a planned change, everybody rank 0's last commit after a death."""

from __future__ import annotations

import asyncio
import os
import shutil

import pytest

from jupyter_elastic.driver.driver import load_engine
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.types.errors import EngineError
from tests.live.engine.bench import NOTE, Bench

LARGE = 250_000
"""Bytes that a message with the model in it has at least."""

CELL = (
    NOTE
    + """
import hashlib
import torch
from jupyter_elastic import training
from jupyter_elastic.training import link as session

torch.manual_seed(0)
model = torch.nn.Linear(WIDTH, WIDTH)
model.register_buffer("own", torch.zeros(1, dtype=torch.int64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
state = training.State(model=model, optimizer=optimizer, chosen=0)
x = torch.randn(48, WIDTH)

group, sent = session.current.groups.group("torch"), []
broadcast = group.broadcast
def counted(data):
    received = broadcast(data)
    sent.append(len(received))
    return received
group.broadcast = counted
if os.path.exists(f"{FOLDER}/older"):  # so it is for those that come then
    with open(f"{FOLDER}/older", "rb") as file:
        older = file.read()
    session.current.load = lambda: memoryview(older) if older else None

@training.run
def train(state):
    largest = max(sent, default=0)
    sent.clear()
    if state.step == 0:
        model.own[0] = state.chosen = os.getpid()
        state.commit()
    for state.epoch in state.epochs(10_000):
        for batch in training.batches(x, 12):
            optimizer.zero_grad()
            (model(batch) - batch).square().mean().backward()
            optimizer.step()
            weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
            digest = hashlib.sha256(weights).hexdigest()
            note(rank=training.rank(), size=training.size(), step=state.step, own=int(model.own), chosen=state.chosen,
                 largest=largest, digest=digest)
            time.sleep(0.02)
            if state.step == 3:
                state.commit()

train(state)
"""
)


@pytest.fixture(params=["torch", "horovod"])
def engine(request, warm_workers):
    pytest.importorskip("torch")
    try:
        found = load_engine(request.param)
    except EngineError:
        pytest.skip(f"no engine {request.param} is installed")
    if missing := found.missing():
        pytest.skip(missing)
    return found


async def of_all(bench, size, after=0.0):
    """A step that all members of a group of this size have taken, by rank; all have the same weights in it."""

    def found():
        steps = {}
        for note in bench.steps():
            if note["size"] == size and note["at"] > after and note["step"] > 1:
                steps.setdefault(note["step"], {})[note["rank"]] = note
        return next((ranks for ranks in steps.values() if len(ranks) == size), None)

    ranks = await bench.until(found)
    assert len({note["digest"] for note in ranks.values()}) == 1, bench.story()
    return [ranks[rank] for rank in range(size)]


def test_members_keep_what_they_have_until_one_is_lost(engine, tmp_path):
    async def story():
        async with Bench(engine, tmp_path / "job", CELL, names={"WIDTH": 256}) as bench:
            await bench.launch("h:0", "h:1")
            first, second = await of_all(bench, 2)
            assert [note["own"] for note in (first, second)] == [first["pid"], second["pid"]]
            await bench.until(lambda: bench.steps()[-1]["step"] > 4)

            await bench.rescale("h:0", "h:1", "h:2")
            grown = await of_all(bench, 3)
            assert [note["own"] for note in grown] == [first["pid"], second["pid"], first["pid"]]
            assert {note["chosen"] for note in grown} == {first["pid"]}
            assert max(note["largest"] for note in grown) < LARGE  # the newcomer has read the commit

            await bench.rescale("h:0", "h:1")
            shrunk = await of_all(bench, 2, grown[0]["at"])
            assert [note["own"] for note in shrunk] == [first["pid"], second["pid"]]

    asyncio.run(story())


def test_after_a_death_all_take_rank_0s(engine, tmp_path):
    async def story():
        async with Bench(engine, tmp_path / "job", CELL, names={"WIDTH": 256}) as bench:
            await bench.launch("h:0", "h:1", "h:2")
            first, second, third = await of_all(bench, 3)
            await bench.until(lambda: bench.steps()[-1]["step"] > 4)
            bench.kill(0)
            await bench.until(lambda: bench.steps()[-1]["pid"] not in {first["pid"], second["pid"], third["pid"]})
            whole = await of_all(bench, 3, bench.steps()[-1]["at"])
            assert [note["pid"] for note in whole[:2]] == [second["pid"], third["pid"]]
            assert {note["own"] for note in whole} == {second["pid"]}
            assert {note["chosen"] for note in whole} == {second["pid"]}

    asyncio.run(story())


@pytest.mark.parametrize("kept", ["older", "none"])
def test_a_newcomer_that_finds_another_commit_is_sent_the_right_one(engine, kept, tmp_path):
    async def story():
        async with Bench(engine, tmp_path / "job", CELL, names={"WIDTH": 256}) as bench:
            await bench.launch("h:0", "h:1")
            first, _ = await of_all(bench, 2)
            if kept == "older":
                shutil.copy(Commits(bench.folder).shared, bench.folder / "older")
            else:
                (bench.folder / "older").touch()
            await bench.until(lambda: bench.steps()[-1]["step"] > 4)
            await bench.rescale("h:0", "h:1", "h:2")
            grown = await of_all(bench, 3)
            assert grown[2]["own"] == first["pid"]
            assert {note["largest"] > LARGE for note in grown} == {True}

    asyncio.run(story())


@pytest.mark.skipif(not os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"), reason="takes minutes and gigabytes")
def test_500_megabytes_go_through_a_change_and_a_death(engine, tmp_path):
    async def story():
        async with Bench(engine, tmp_path / "job", CELL, names={"WIDTH": 7900}) as bench:
            await bench.launch("h:0", "h:1")
            first, second = await of_all(bench, 2)
            await bench.until(lambda: bench.steps()[-1]["step"] > 4)
            await bench.rescale("h:0", "h:1", "h:2")
            grown = await of_all(bench, 3)
            assert [note["own"] for note in grown] == [first["pid"], second["pid"], first["pid"]]
            bench.kill(0)
            await bench.until(lambda: bench.steps()[-1]["pid"] not in {note["pid"] for note in grown})
            whole = await of_all(bench, 3, bench.steps()[-1]["at"])
            assert [note["pid"] for note in whole[:2]] == [second["pid"], grown[2]["pid"]]
            assert len({note["own"] for note in whole}) == 1

    asyncio.run(story())
