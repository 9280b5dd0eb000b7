"""What a running job says of itself where its ranks wait for each other."""

from __future__ import annotations

from pathlib import Path

from tests.live.engine.bench import needs
from tests.support.pool import Pool

STANDS = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
if rank == 1:
    while not os.path.exists(FOLDER + "/go"):
        time.sleep(0.02)
dist.all_reduce(torch.ones(1))
"""


@needs("torch")
def test_which_rank_waits_for_which_while_it_does(lasting_pool: Pool, tmp_path: Path) -> None:
    pool = lasting_pool
    env = {"JUPYTER_ELASTIC_WAIT_S": "0.5"}
    job = pool.submit(STANDS, slots=2, engine="torch", names={"FOLDER": str(tmp_path)}, env=env)
    told = pool.until(lambda: "waits for" in (text := pool.job(job).explain()) and text, "explain says who waits")
    assert "Rank 0 waits for rank 1 since " in told
    (tmp_path / "go").touch()
    assert pool.ended(job).outcome == "completed"
    assert "waits" not in pool.job(job).explain()
