"""One machine for the folder's tests: a pool for UNIX users, a JupyterHub, two who share them and an administrator."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.client import Client
from jupyter_elastic.platform import endpoints
from tests.support.hub import ROOT, Account, Hub, Login, until, why_not
from tests.support.other_user import interpreter


class Machine:
    """The accounts `ann`, `bob` (users) and `eve` (administrator), the daemon's own, the Hub."""

    def __init__(self, folder: Path, held: contextlib.ExitStack) -> None:
        self.folder = folder
        names = ("ann", "bob", "eve", "pool")
        self.ann, self.bob, self.eve, self.pool = (self._account(name, held) for name in names)
        self.config = folder / "config.toml"
        self.config.write_text(
            f'socket = "{folder}/run/pool.sock"\ntcp = "tcp://127.0.0.1:0"\nadmin = ["{self.eve.name}"]\n'
            f'slots = 4\npolicy = "fair"\nshares = "{folder}/shares.toml"\n'
        )
        (folder / "shares.toml").write_text(f"[users.{self.ann.name}]\nweight = 2.0\n")
        self.endpoint = f"ipc://{folder}/run/pool.sock"
        self.daemon = self._start_daemon(held)
        self.client = held.enter_context(Client(self.endpoint))
        says = {endpoints.CONFIG_VARIABLE: str(self.config)}
        says |= {"HUB_ADMIN": self.eve.name, "HUB_POOL_USER": self.pool.name}
        self.hub = held.enter_context(Hub(folder, says))

    def _account(self, name: str, held: contextlib.ExitStack) -> Account:
        made = Account(f"{name}{os.getpid()}", self.folder / name)
        held.callback(made.remove)
        return made

    def _start_daemon(self, held: contextlib.ExitStack) -> subprocess.Popen[bytes]:
        """As its own user, who has no other right."""
        (self.folder / "run").mkdir()
        shutil.chown(self.folder / "run", self.pool.uid)
        with (self.folder / "daemon.log").open("wb") as log:
            process = subprocess.Popen(
                [interpreter(), "-P", "-m", "jupyter_elastic.scheduler", "--config", str(self.config)],
                env={
                    "HOME": str(self.pool.home), "PATH": os.defpath,
                    "PYTHONPATH": os.pathsep.join((str(ROOT), sysconfig.get_path("purelib"))),
                    "JUPYTER_ELASTIC_DIR": str(self.pool.home / "pool"),
                },
                user=self.pool.uid, group=self.pool.home.stat().st_gid, extra_groups=[], cwd="/",
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        held.callback(process.wait)
        held.callback(process.kill)
        until(lambda: process.poll() is not None or (self.folder / "run" / "pool.sock").exists(), "the daemon comes up")
        assert process.poll() is None, (self.folder / "daemon.log").read_text()
        return process

    def elastic(self, account: Account, *words: str) -> tuple[int, str]:
        """`jupyter elastic ...` in a terminal of this user: the exit code, and all that it wrote."""
        done = subprocess.run(
            [interpreter(), "-P", "-m", "jupyter_elastic.cli", *words],
            env={
                "HOME": str(account.home), "PATH": os.defpath, endpoints.CONFIG_VARIABLE: str(self.config),
                "PYTHONPATH": os.pathsep.join((str(ROOT), sysconfig.get_path("purelib"))),
            },
            user=account.uid, group=account.home.stat().st_gid, extra_groups=[], cwd="/", check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout

    def login(self, account: Account) -> Login:
        """Log in at the Hub with the account's password."""
        return Login(self.hub, account.name, account.password)


@pytest.fixture(scope="package")
def machine() -> Iterator[Machine]:
    if missing := why_not():
        pytest.skip(missing)
    folder = Path(tempfile.mkdtemp(prefix="elastic-hub-"))
    folder.chmod(0o755)
    with contextlib.ExitStack() as held:
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Machine(folder, held)
