"""Runs this package as another UNIX user, who has no account and a home folder of his own; tests of it need root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

UID = 60_008 + 8 * os.getpid() % 5_400
"""With the seven after it for this process alone; useradd gives none of them by itself."""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")


def _anybody_may(path: str) -> bool:
    """Whether anybody may run this file."""
    real = Path(path).resolve()
    return all(folder.stat().st_mode & 0o001 for folder in (real, *real.parents))


def interpreter() -> str:
    """A Python of this one's version that anybody may run: this one may lie in a private home."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        if Path(path).exists() and _anybody_may(path):
            return path
    pytest.skip(f"there is no {name} that other users may run")


def change_accounts(*command: str) -> None:
    """Run useradd or userdel, again while somebody else has the accounts' lock."""
    limit = time.monotonic() + 60
    while subprocess.run(command, check=False, capture_output=True).returncode:
        assert time.monotonic() < limit, command
        time.sleep(0.1)


class OtherUser:
    """A user with a home; `environment` says nothing of where a pool is."""

    def __init__(self, home: Path, uid: int = UID) -> None:
        self.home = home
        self.uid = uid
        package = Path(__file__).parents[2]
        self.environment = {
            "HOME": str(home),
            "PATH": os.defpath,
            "PYTHONPATH": os.pathsep.join((str(package), sysconfig.get_path("purelib"))),
        }

    def start(
        self,
        *words: str,
        more: Mapping[str, str] | None = None,
        groups: Sequence[int] = (),
        uid: int | None = None,
        before: Sequence[str] = (),
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start `python -P` with these words; `more` is added to the environment, `groups` to the user's.

        `uid`: as somebody else. `before`: a command that runs it.
        """
        uid = self.uid if uid is None else uid
        return subprocess.Popen(
            [*before, interpreter(), "-P", *words],
            env={**self.environment, **(more or {})},
            user=uid, group=uid, extra_groups=groups, cwd="/", text=True, stdin=subprocess.DEVNULL, **options,
        )  # fmt: skip

    def elastic(self, *words: str, more: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """`jupyter elastic ...`: the exit code, what it printed, its errors."""
        command: Sequence[str] = ("-m", "jupyter_elastic.cli", *words)
        process = self.start(*command, more=more, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, errors = process.communicate(timeout=90)
        finally:
            process.kill()
        return process.returncode, out, errors


@contextlib.contextmanager
def other_user(uid: int = UID) -> Iterator[OtherUser]:
    """Such a user; at the end his pools are stopped and his files removed."""
    home = Path(tempfile.mkdtemp())
    os.chown(home, uid, uid)
    user = OtherUser(home, uid)
    try:
        yield user
    finally:
        user.elastic("stop", "--force", "--all", "--yes")
        for left in (home, *Path("/tmp").glob(f"jupyter-elastic-{uid}*")):
            shutil.rmtree(left, ignore_errors=True)
