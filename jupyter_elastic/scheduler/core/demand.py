"""Compute how many more slots the queue could use: what the policy would give away if there were more hosts. Pure.

The active policy is asked once more about the same view with an empty host added; the unmet demand is what it gives
away beyond the existing slots. So all rules of the policy count: a job that would not be faster asks for nothing, nor
does a job that a limit of its owner holds back, and a job that waits for more slots than there could be does not count.
A program that brings hosts on demand (Slurm's allocations, Ray's autoscaler) runs on the user's side and sends
`wire.ReadDemand(at_most=N)`, where N is the number of slots that it could still bring; `wire.Demand.slots` is the
answer: a momentary figure, at most N, and 0 if all jobs have what they want. Nothing is reserved. Once the requested
hosts are in the pool the next answer no longer contains them; until then the program subtracts what is on its way.
"""

from __future__ import annotations

from msgspec.structs import replace

from jupyter_elastic.types import HostView, Plan, View

NAME = "(more)"
"""Name of the added host; no real host can have it."""


def with_room(view: View, slots: int) -> View:
    """Return the view with one more host of `slots` free slots."""
    return replace(view, hosts=(*view.hosts, HostView(name=NAME, capacity=slots, free=slots)))


def unmet(view: View, wished: Plan, at_most: int) -> int:
    """Count the slots that the plan, made for `with_room(view, at_most)`, gives away beyond those of `view`."""
    given = sum(job.cost(wished.sizes[job.job]) for job in view.jobs if job.job in wished.sizes)
    return min(max(given - view.capacity, 0), at_most)
