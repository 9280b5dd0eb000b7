"""Where the public traces lie: $JUPYTER_ELASTIC_TRACES, or `shared/traces` beside the checkout. Else tests skip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("JUPYTER_ELASTIC_TRACES") or Path(__file__).parents[3] / "shared" / "traces")

needs_traces = pytest.mark.skipif(
    not (ROOT / "profiles" / "pollux_t4").is_dir(), reason=f"the public traces aren't in {ROOT}"
)
PROFILES = ROOT / "profiles" / "pollux_t4"


def pollux(load: str, number: int) -> Path:
    """Workload `number` at relative load `load` ("0.5" to "2.0")."""
    folder = "workloads" if load == "1.0" else f"workloads-{load}"
    return ROOT / "dev" / "pollux" / folder / f"workload-{number}.csv"
