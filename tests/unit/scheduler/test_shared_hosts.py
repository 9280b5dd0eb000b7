"""The other hosts of a shared pool: who may write their file, which ways are refused, and whom a host is kept from."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.hostfiles import shared_hosts
from jupyter_elastic.platform.endpoints import CONFIG_VARIABLE
from jupyter_elastic.protocol.wire import FailedHost
from jupyter_elastic.scheduler.slots.slot_sources import Cpu, kept_from, shared_pool
from jupyter_elastic.types.errors import BadRequest


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o755)
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config.toml"))
    assert shared_hosts.path() == tmp_path / "hosts.json"
    return tmp_path / "hosts.json"


def write(file: Path, *hosts: dict[str, Any]) -> None:
    file.write_text(json.dumps(hosts))
    file.chmod(0o644)


LAB2 = {"name": "lab2", "reach": "ssh://lab2:2222", "slots": 2, "devices": ["GPU-a", "GPU-b"]}


def test_they_are_hosts_of_the_pool_for_users_of_its_machine(file: Path) -> None:
    assert shared_hosts.read() == ()
    assert len(shared_pool(Cpu(2), frozenset())) == 1
    write(file, LAB2)
    here, lab2 = shared_pool(Cpu(2), frozenset())
    assert (here.local_users, here.url) == (False, "")
    assert (lab2.name, lab2.kind, lab2.local_users, lab2.url) == ("lab2", "gpu", True, "ssh://lab2:2222")
    assert [slot.device for slot in lab2.slots if not slot.for_servers] == ["GPU-a", "GPU-b"]


def test_a_host_is_kept_from_whom_it_failed_until_it_is_tried_again(file: Path) -> None:
    write(file, LAB2)
    now = time.time()
    failed = {
        "ann": {"lab2": FailedHost(why="no key", again_at=now + 60), "gone": FailedHost(why="", again_at=now + 60)},
        "bob": {"lab2": FailedHost(why="no route", again_at=now - 1)},
    }
    _, lab2 = kept_from(shared_pool(Cpu(2), frozenset()), failed)
    assert lab2.unreachable == {"ann": "no key"}


@pytest.mark.parametrize(
    "url", ["ssh://root@lab2", "ray://lab2:6379/1", "slurm://7/lab2", "kubectl://a/b", "ssh -oProxyCommand=x"]
)
def test_a_way_by_which_all_would_be_one_user_is_refused(file: Path, url: str) -> None:
    write(file, LAB2 | {"reach": url})
    with pytest.raises(BadRequest, match="everybody comes as themselves"):
        shared_hosts.read()


@pytest.mark.parametrize("which", ["file", "folder"])
def test_a_file_that_others_may_write_is_refused(file: Path, which: str) -> None:
    write(file, LAB2)
    (file if which == "file" else file.parent).chmod(0o777)
    with pytest.raises(BadRequest, match="can be changed by others"):
        shared_hosts.read()


def test_a_host_by_the_name_of_the_pools_machine_is_refused(file: Path) -> None:
    write(file, LAB2 | {"name": Cpu(1).hosts(frozenset())[0].name})
    with pytest.raises(BadRequest, match="names this machine too"):
        shared_pool(Cpu(1), frozenset())
