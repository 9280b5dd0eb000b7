"""Whether a server counts as active, for whoever ends those that are not."""

from __future__ import annotations

import os
from datetime import datetime

from tests.support.lab import Lab, clean_environment


def test_a_running_job_is_activity_where_that_was_asked_for(pool, server, tmp_path) -> None:
    env = clean_environment(JUPYTER_ELASTIC_DIR=str(pool.folder), JUPYTER_ELASTIC_SLOTS="2", PATH=os.environ["PATH"])

    def active_at(lab: Lab) -> float:
        return datetime.fromisoformat(lab.api("api/status")["last_activity"]).timestamp()

    with Lab(tmp_path, env, "--ElasticApp.jobs_are_activity=True", module="jupyter_server") as lab:
        job = pool.submit("import time; time.sleep(600)", slots=1)
        pool.running(job)
        began = pool.info(job).started_at
        pool.until(lambda: active_at(lab) > began, "the job is activity")
        first = active_at(lab)
        pool.submit("print(1)", slots=2)
        pool.until(lambda: active_at(lab) > first, "and goes on to be")
        assert active_at(server) < began
