"""How many more slots the queue could use: what the policy would give away, were there more hosts. Pure.

The policy that decides is asked once more, about the same view with an empty host beside the others; what it gives away
beyond the slots that there are is its unmet wish. So all that it goes by counts: a job that would not be faster wishes
for nothing, neither does one that is held back by a limit of its owner, and one that waits for more slots than there
could be does not count.

Who brings hosts when they are wanted (Slurm's allocations, Ray's autoscaler) runs on the user's side and asks for it by
`wire.ReadDemand(at_most=N)`, N being the slots that it could still bring; `wire.Demand.slots` is the answer. Nothing is
reserved by asking: the answer is a figure of this moment, at most N, and 0 when all have what they want. A source that
has brought what was asked for, and whose hosts are in the pool, finds it gone from the next answer; until they are,
it has to take off by itself what is on its way.
"""

from __future__ import annotations

from msgspec.structs import replace

from jupyter_elastic.types import HostView, Plan, View

NAME = "(more)"
"""Of the host that is not there; no real one can be called so."""


def with_room(view: View, slots: int) -> View:
    """The view as it would be with a host more, of so many free slots."""
    return replace(view, hosts=(*view.hosts, HostView(name=NAME, capacity=slots, free=slots)))


def unmet(view: View, wished: Plan, at_most: int) -> int:
    """Slots that the plan, made for `with_room(view, at_most)`, gives away beyond those of `view`."""
    given = sum(job.cost(wished.sizes[job.job]) for job in view.jobs if job.job in wished.sizes)
    return min(max(given - view.capacity, 0), at_most)
