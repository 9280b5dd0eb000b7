"""Start the user's agent in a unit of its own before the user's server: a spawner's hook.

A spawner that gives each server a control group ends all of it with the server. The agent, and with it the jobs, must
not be in there. Runs in the Hub's process, which may start units (root, or by a rule of polkit).
"""

from __future__ import annotations

import asyncio
import contextlib
import pwd
from typing import Any

UNIT = "jupyter-elastic-agent@{uid}.service"
START_S = 30.0
"""Maximum seconds that a server's start waits for its user's agent."""


async def start_agent_unit(spawner: Any) -> None:
    """Start the agent's unit of this spawner's user: `c.Spawner.pre_spawn_hook = start_agent_unit`.

    The server starts in any case; without the unit its own agent is started later, in the server's control group, and
    jobs end with the server and go on at the next one. The Hub's log tells why.
    """
    problem = _obstacle(spawner)
    try:
        uid = pwd.getpwnam(_unix_name(spawner)).pw_uid
    except KeyError:
        problem = problem or f"there is no UNIX user {_unix_name(spawner)}"
    if not problem:
        problem = await _start(UNIT.format(uid=uid))
    if problem:
        spawner.log.warning("jupyter-elastic: jobs of %s will end with the server: %s", spawner.user.name, problem)


def _unix_name(spawner: Any) -> str:
    """Return the UNIX name, for which systemdspawner may have a template."""
    template: str = getattr(spawner, "username_template", "") or "{USERNAME}"
    return template.replace("{USERNAME}", spawner.user.name)


def _obstacle(spawner: Any) -> str:
    """Describe systemdspawner's option that keeps the server from finding an agent outside of it; empty if none."""
    if getattr(spawner, "dynamic_users", False):
        return "dynamic_users gives the server a UNIX id of its own; set it to False"
    if getattr(spawner, "isolate_tmp", False):
        return "isolate_tmp hides the agent's sockets in /tmp from the server; set it to False"
    return ""


async def _start(unit: str) -> str:
    """Start a unit; return the problem, empty if it runs."""
    try:
        process = await asyncio.create_subprocess_exec(
            "systemctl", "start", unit,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as problem:
        return f"systemctl can't be run: {problem.strerror}"
    try:
        async with asyncio.timeout(START_S):
            _, errors = await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return f"{unit} has not started in {START_S:g} s; see `systemctl status {unit}`"
    if process.returncode == 0:
        return ""
    return f"{errors.decode(errors='replace').strip()[:500] or unit + ' failed'}; see `systemctl status {unit}`"
