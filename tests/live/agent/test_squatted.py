"""A user whose folder in /tmp somebody else has made before the first login."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.other_user import UID, needs_root, other_user


@needs_root
def test_daemon_agent_and_commands_find_one_another_all_the_same() -> None:
    squatted = Path(f"/tmp/jupyter-elastic-{UID}")
    with other_user() as user:
        squatted.mkdir(mode=0o700)  # root's
        code, first, errors = user.elastic("status", "--json")
        assert code == 0, errors
        squatted.rmdir()
        _, again, _ = user.elastic("status", "--json", more={"XDG_RUNTIME_DIR": str(user.home)})
        assert json.loads(again)["welcome"]["pid"] == json.loads(first)["welcome"]["pid"]
        _, said, _ = user.elastic("stop", "--json")
        (stopped,) = json.loads(said)
        assert [ended.split(" (")[0] for ended in stopped["ended"]][:2] == ["agent", "daemon"], stopped
