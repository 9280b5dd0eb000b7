"""Follows docs/jupyterhub.md as root in a clean system, which `tests.support.clean_system.follow` makes.

First the set-up of docs/systemd.md, which the page builds on. Of two UNIX users one works through the Hub.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import requests

from tests.support.clean_system import CleanSystem, blocks, elastic, say
from tests.support.hub import Account, Login, RunningHub, until

URL = "http://127.0.0.1:8000"
CELL = """%%distribute --gpus 1 --engine process --name page --out answer
import os
answer = (6 * 7, os.getuid())
"""


def work(hub: RunningHub, ann: Account) -> None:
    """What somebody does in a notebook."""
    login = Login(hub, ann.name, ann.password)
    login.start_server()
    login.server_ready()
    say(lab=login.api("lab").status_code)
    kernel = login.kernel()
    kernel.run("%load_ext jupyter_elastic")
    kernel.run(CELL)
    say(answer=kernel.run("print(answer)"), uid=ann.uid)
    headers = {"Authorization": f"token {login.token}"}

    def used() -> requests.Response | None:
        answer = requests.get(f"{URL}/services/elastic/api/usage", headers=headers, timeout=60)
        return answer if answer.status_code == 200 else None

    say(usage=until(used, "the Hub's service answers", hub.tell).json())
    login.held.close()


def main() -> None:
    install, *_ = blocks("systemd.md")
    commands, *_ = blocks("jupyterhub.md")
    system = CleanSystem()
    for line in install:
        system.carry_out(line)
    *before, start = commands
    for line in before:
        system.carry_out(line)
    ann, bob = (Account(name, Path("/srv", name)) for name in ("ann", "bob"))
    with RunningHub(Path.cwd(), URL, ["sh", "-c", f"exec {start}"]) as hub:
        try:
            Login(hub, bob.name, ann.password)
        except PermissionError as problem:
            say(refused=str(problem))
        work(hub, ann)
    look: dict[str, Any] = {"user": bob.uid, "group": bob.uid, "extra_groups": [], "capture_output": True, "text": True}
    database = subprocess.run(["cat", "/srv/jupyterhub/jupyterhub.sqlite"], check=False, **look)
    say(database_for_bob=database.stderr.strip())
    say(seen_by_bob=elastic(bob.uid, bob.home, "jobs", "--all", "--json").stdout)


main()
