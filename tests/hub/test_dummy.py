"""`examples/jupyterhub_config.py` without root and accounts: any name logs in, and is the one who runs the Hub."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub import Account, Hub, Login, why_not
from tests.support.other_user import OtherUser

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture
def carl() -> Iterator[Account]:
    """Somebody without rights, who runs a pool of his own."""
    with contextlib.ExitStack() as held:
        folder = Path(tempfile.mkdtemp(prefix="elastic-dummy-"))
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        made = Account(f"carl{os.getpid()}", folder / "carl")
        held.callback(made.remove)
        daemon = OtherUser(made.home, made.uid).start("-m", "jupyter_elastic.scheduler", "--slots", "2")
        held.callback(daemon.wait)
        held.callback(daemon.kill)
        yield made


def test_any_name_is_the_user_who_runs_the_hub_and_finds_his_pool(carl: Account) -> None:
    name = f"grace{os.getpid()}"
    with contextlib.ExitStack() as held:
        for left in (name, f"torchinductor_{name}"):  # the spawner makes her home there
            held.callback(shutil.rmtree, Path("/tmp", left), ignore_errors=True)
        says = {"HUB_AUTHENTICATOR": "dummy", "HOME": str(carl.home)}
        login = Login(held.enter_context(Hub(carl.home, says, account=carl)), name, "any")
        held.callback(login.held.close)
        login.start_server()
        login.server_ready()
        kernel = login.kernel()
        kernel.run("%load_ext jupyter_elastic")
        kernel.run(
            "%%distribute --gpus 2 --engine process --name tried --out answer\nimport os\nanswer = (42, os.getuid())"
        )
        assert kernel.run("print(answer)") == f"(42, {carl.uid})\n"
    code, out, errors = OtherUser(carl.home, carl.uid).elastic("jobs", "--all")
    assert (code, "tried" in out) == (0, True), errors
