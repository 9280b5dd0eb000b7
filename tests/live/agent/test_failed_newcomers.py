"""A newcomer that can't do what the first worker did once: by daemon, policy and view, the job goes on at its size."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_elastic.protocol.wire import SwitchPolicy
from jupyter_elastic.types import RescaleRequested, WorkerDied
from tests.support.pool import Pool

pytest.importorskip("torch")

CELL = """
import os, time, torch
from jupyter_elastic import training
os.mkdir("{folder}/run-1")
net = torch.nn.Linear(3, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
state = training.State(net=net, opt=opt, enough=False)
x, y = torch.ones(64, 3), torch.ones(64, 1)
@training.run
def fit(state):
    for state.epoch in state.epochs(100_000):
        for xs, ys in training.batches((x, y), 64):
            opt.zero_grad(); (net(xs) - ys).pow(2).mean().backward(); opt.step(); time.sleep(0.01)
        state.enough = training.agree(os.path.exists("{folder}/stop"))
        state.commit()
        if state.enough:
            return
fit(state)
"""


def test_the_job_stays_at_its_size_and_says_why(shared_pool: Pool, tmp_path: Path) -> None:
    pool = shared_pool
    pool.client.ask(SwitchPolicy(name="fair"))
    wait = f"import os, time\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)"
    other = pool.submit(wait)
    job = pool.submit(CELL.format(folder=tmp_path), slots=(1, 2), engine="torch")
    pool.until(lambda: pool.info(job).elastic, "the job trains")
    (tmp_path / "go").touch()
    pool.ended(other)
    died = pool.wait(lambda: [data for data in pool.events_of(job) if isinstance(data, WorkerDied)], "it is dropped")[0]
    why = f"rank 1 could not join: FileExistsError: [Errno 17] File exists: '{tmp_path}/run-1', line 4 of the cell"
    assert died.text == f"{why}; the job stays at 1"
    pool.wait(lambda: pool.info(job).phase == "running" and not pool.info(job).draining, "it goes on")
    assert why in pool.job(job).explain()
    assert f"{why}; the job stays at 1" in [point.reason for point in pool.job(job).size_history()]
    next_one = pool.submit("print(1)")
    pool.ended(next_one)  # the policy was asked again, and slots are free
    assert len([data for data in pool.events_of(job) if isinstance(data, RescaleRequested)]) == 2
    (tmp_path / "stop").touch()
    assert pool.ended(job).outcome == "completed"
