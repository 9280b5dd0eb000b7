"""Which of a user's agents the orders belong to, when there is more than one.

Knows the state and where agents are. What was launched in one place can only be seen from there: an agent elsewhere
would take it for ended, and its slots for free.
"""

from __future__ import annotations

from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.types import AgentPlace


def objection(state: State, user: str, place: AgentPlace | None, *, alone: bool, take_over: bool) -> str:
    """Why the newcomer can't be the agent of `user`; empty when it can.

    It can where no other is known, and as the successor in the same place. Elsewhere it can when the other is gone and
    either nothing runs, or it sees the other's folders and found no driver alive (`alone`), or its user says that
    nothing of the other runs any more (`take_over`). While the other is there it only can when nothing runs and its
    user says so.
    """
    known = state.places.get(user)
    if known is None or (place is not None and place.place == known.place):
        return ""
    connected = state.agents.get(user, False)
    jobs = [str(job.job) for job in state.active_jobs() if job.owner == user]
    if connected and not jobs:
        if take_over:
            return ""
        remedy = "end that one with `jupyter elastic stop` where it runs, or start this one with --take-over"
    elif connected:
        remedy = "submit from there, or end them first"
    elif not jobs or take_over or (alone and place is not None and place.home == known.home):
        return ""
    else:
        remedy = "if nothing of it runs any more, start this one with `jupyter elastic agent --take-over`"
    there = "it is connected" if connected else "it is not connected"
    runs = f", and only it can see what runs of job {', '.join(jobs[:10])}" if jobs else ""
    return f"the agent of {user} is another one ({known.description or known.place}); {there}{runs}: {remedy}"
