"""Every engine keeps the promises of `engines.base`: one suite for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_elastic.driver.engine import Engine
from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.testing.engines import ENGINE_CHECKS, FakeEngine, check_engine


@pytest.mark.parametrize("check", ENGINE_CHECKS)
@pytest.mark.parametrize("engine", [FakeEngine, Process, Horovod, Torch], ids=lambda engine: engine.name)
def test_engine(
    engine: type[Engine], check: str, tmp_path: Path, pool_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "grace_s", 1.0, raising=False)
    check_engine(engine, tmp_path, check)


class Liar(FakeEngine):
    """Releases nothing at the end."""

    def finish(self, outcome: str, reason: str = "") -> None:
        self._slots = ()
        super().finish(outcome, reason)


def test_the_suite_can_fail(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="every slot is released once"):
        check_engine(Liar, tmp_path, "completes")
