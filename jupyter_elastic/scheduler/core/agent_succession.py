"""Decide which of a user's agents gets the orders if there are several.

Knows the state and the origins of agents. Only an agent with the same origin sees what was launched there; an agent
elsewhere would take a running attempt for ended and its slots for free.
"""

from __future__ import annotations

from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.types import AgentOrigin


def objection(state: State, user: str, place: AgentOrigin | None, *, alone: bool, take_over: bool) -> str:
    """Return the reason why a new agent can't be the agent of `user`; empty if it can.

    It can if no other agent is known, or as the successor with the same origin. With another origin it can if the old
    agent is gone and either nothing runs, or the new one sees the old one's folders and found no driver alive
    (`alone`), or the user confirms that nothing of it runs any more (`take_over`). While the old agent is connected the
    new one can only with `take_over` and if nothing runs.
    """
    known = state.places.get(user)
    if known is None or (place is not None and place.place == known.place):
        return ""
    connected = state.agents.get(user, False)
    jobs = [str(job.job) for job in state.active_jobs() if job.owner == user]
    if connected and not jobs:
        if take_over:
            return ""
        remedy = "end that one with `jupyter elastic pool stop` where it runs, or start this one with --take-over"
    elif connected:
        remedy = "submit from there, or end them first"
    elif not jobs or take_over or (alone and place is not None and place.home == known.home):
        return ""
    else:
        remedy = "if nothing of it runs any more, start this one with `jupyter elastic admin agent --take-over`"
    there = "it is connected" if connected else "it is not connected"
    runs = f", and only it can see what runs of job {', '.join(jobs[:10])}" if jobs else ""
    return f"the agent of {user} is another one ({known.description or known.place}); {there}{runs}: {remedy}"
