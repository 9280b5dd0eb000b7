"""A Jupyter server whose pool is elsewhere: over TCP, with a key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.guests import environment, guest, invite, tcp_options
from tests.support.lab import Lab, clean_environment
from tests.support.pool import Pool


def test_a_server_and_the_doctor_reach_a_pool_behind_keys(tmp_path: Path) -> None:
    ada = guest(tmp_path, "ada")
    with Pool(tmp_path / "pool", slots=1, options=tcp_options(tmp_path)) as pool:
        invite(ada, pool)
        env = clean_environment(**environment(ada))
        try:
            ada.start_agent()
            with Lab(tmp_path / "server", env, module="jupyter_server") as server:
                pool.until(lambda: server.api("elastic/api/health")["down_since"] is None, "the extension has the pool")
                job = ada.submit("print('hello')")
                assert pool.ended(job).outcome == "completed"
                assert pool.info(job).owner == "ada"
                page = server.api(f"elastic/api/jobs/{job}")
                assert page["screen"]["owner"] == "ada", page
            doctor = [
                sys.executable,
                "-c",
                "from jupyter_elastic.cli import doctor; print(doctor.check_daemon().found)",
            ]
            found = subprocess.run(doctor, env=env, capture_output=True, text=True, check=False, timeout=120)
            assert "you are ada" in found.stdout, found
        finally:
            ada.stop()
