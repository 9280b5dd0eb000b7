"""Whether a plan can be carried out in a pool of which only the view is known.

Knows the vocabulary; must not know the core's books (`core.plan` judges by those) nor tables. Imports nothing heavy:
kernels and the Jupyter server have the what-if, which asks here.
"""

from __future__ import annotations

from jupyter_elastic.types import Plan, Size, View


def illegal(plan: Plan, view: View) -> str | None:
    """Why a plan can't be carried out; None when it can."""
    jobs = {job.job: job for job in view.jobs}
    for number, size in plan.sizes.items():
        job = jobs.get(number)
        if job is None:
            return f"there is no unfinished job {number}"
        if not isinstance(size, Size) or size.workers < 0 or (size.workers and not job.allows(size.workers)):
            return f"job {number} can't run on {size}"
    total = sum(size.slots for size in plan.sizes.values())
    return f"{total} slots are more than the pool's {view.capacity}" if total > view.capacity else None
