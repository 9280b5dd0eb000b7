"""The pool of a machine: its file names the socket, and who says nothing else finds that pool."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

from jupyter_elastic.platform import endpoints
from jupyter_elastic.protocol import wire
from tests.support.other_user import UID, needs_root, other_user

NOBODYS_USAGE = """
import os, sys
from jupyter_elastic.client import Client
from jupyter_elastic.protocol import wire
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with Client(sys.argv[1]) as client:
    print(client.ask(wire.ReadUsage()).rows)
"""


@needs_root
def test_who_says_nothing_uses_the_machines_pool_and_runs_his_jobs_himself(pool, open_folder) -> None:
    config = open_folder / "config.toml"
    config.write_text(f'socket = "{open_folder}/s"\npolicy = "fair"\n')
    config.chmod(0o644)
    pool.start("--config", str(config), plain=False)
    with other_user() as user:
        user.environment[endpoints.CONFIG_VARIABLE] = str(config)
        script = user.home / "who.py"
        script.write_text("import os; print('I am', os.getuid())")
        code, said, errors = user.elastic("run", "--gpus", "1", str(script))
        assert (code, said) == (0, f"I am {UID}\n"), errors
        _, said, errors = user.elastic("status", "--json")
        welcome = json.loads(said)["welcome"]
        assert welcome["pool"] == str(pool.folder)
        assert welcome["policy"] == "fair"
        doctor = "from jupyter_elastic.cli import doctor; print(doctor.check_daemon().found)"
        said, _ = user.start("-c", doctor, stdout=subprocess.PIPE).communicate(timeout=60)
        assert f"({config} names it)" in said
        _, said, errors = user.elastic("usage", "--by", "day,user", "--json")
        (own,) = json.loads(said)["rows"]
        assert own["slot_hours"] > 0, errors
        asked = wire.ReadUsage()
        assert {row.user for row in pool.client().ask(asked).rows} == {own["user"]}, "its administrator sees it"
        nobody = subprocess.run(
            [sys.executable, "-c", NOBODYS_USAGE, f"ipc://{open_folder}/s"], capture_output=True, text=True, check=False
        )
        assert nobody.stdout == "()\n", nobody.stderr
        code, _, errors = user.elastic("daemon")
        assert code == 2
        assert "there is a pool already" in errors
        own_pool = {"JUPYTER_ELASTIC_DIR": str(user.home / "own")}
        _, said, errors = user.elastic("status", "--json", more=own_pool)
        assert json.loads(said)["welcome"]["pool"] == str(user.home / "own"), errors


@needs_root
def test_the_socket_of_a_group_is_closed_to_others(pool, open_folder) -> None:
    config = open_folder / "config.toml"
    config.write_text(f'socket = "{open_folder}/s"\ngroup = "daemon"\n')
    pool.start("--config", str(config))
    info = (open_folder / "s").stat()
    assert stat.S_IMODE(info.st_mode) == 0o660
    with other_user() as user:
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(open_folder / 's')!r})"
        assert user.start("-c", code, stderr=-3).wait(30) == 1
        member = user.start("-c", code, groups=[info.st_gid])
        assert member.wait(30) == 0
    assert info.st_gid != os.getgid()
