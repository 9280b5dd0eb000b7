"""Two pools, one folder of a user: the agent serves one of them, and a submit to the other says so at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_elastic.platform.endpoints import ENDPOINT_VARIABLE
from tests.support.pool import Pool


@pytest.mark.skipif(not os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"), reason="JUPYTER_ELASTIC_TEST_EVERYTHING")
def test_a_submit_to_another_pool_than_the_agents_is_refused_with_the_way_out(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("print('hi')")
    (tmp_path / "f.py").write_text("from jupyter_elastic import submit\nprint(submit(abs, -1).result(timeout=30))\n")
    with Pool(tmp_path / "one", slots=1) as one:
        two = Pool(tmp_path / "two", slots=1)
        two.start_daemon()
        try:
            env = {**one.env, ENDPOINT_VARIABLE: two.endpoint}
            run = ("-m", "jupyter_elastic.cli", "run", "--detach", "--gpus", "1", str(script))
            for words in (run, (str(tmp_path / "f.py"),)):
                done = subprocess.run(
                    [sys.executable, *words], env=env, capture_output=True, text=True, check=False, timeout=60
                )
                assert done.returncode != 0
                assert f"this user's agent serves another pool, {one.endpoint}" in done.stderr
                assert "JUPYTER_ELASTIC_DIR" in done.stderr
            assert two.client.jobs(all=True) == ()
            for more in ({}, {ENDPOINT_VARIABLE: one.endpoint}):
                done = subprocess.run(
                    [sys.executable, *run], env={**one.env, **more}, capture_output=True, text=True, check=False,
                    timeout=60,
                )  # fmt: skip
                assert done.returncode == 0, done.stderr
                assert one.ended(int(done.stdout)).outcome == "completed"
            listed = subprocess.run(
                [sys.executable, "-m", "jupyter_elastic.cli", "status"], env=env, capture_output=True, text=True,
                check=False, timeout=60,
            )  # fmt: skip
            assert listed.returncode == 0, "who only looks is not refused"
        finally:
            two.stop()
