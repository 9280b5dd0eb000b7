"""Follows docs/systemd.md as root in a clean system, which `tests.support.clean_system.follow` makes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.support.clean_system import CONFIG, CleanSystem, blocks, elastic, say

NOBODY = 65534


def main() -> None:
    install, look, group, *_ = blocks("systemd.md")
    system, home = CleanSystem(), Path("/tmp/nobody")
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    for line in install:
        system.carry_out(line)
    assert system.service is not None
    system.service.hear("WATCHDOG=1")
    system.service.hear("WATCHDOG=1")
    assert look == ["jupyter elastic pool status"]
    seen = elastic(NOBODY, home, "status", "--json")
    say(pool=json.loads(seen.stdout)["welcome"]["pool"] if seen.stdout else seen.stderr)
    with CONFIG.open("a") as config:
        config.write('group = "gpu"\n')
    for line in group:
        system.carry_out(line)
    say(refused=elastic(NOBODY, home, "status").stderr)
    say(stopped_again=system.service.stop())


main()
