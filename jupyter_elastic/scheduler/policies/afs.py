"""AFS-L: one slot at a time to the top job, found by weighing length and efficiency of each two candidates.

Source: Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (NSDI 2021), as Voda states it: jobs
without slots go first, the shortest of them first; of a shorter job s and a longer job l, l is above s if (S_l(n+1) -
S_l(n)) / S_l(n+1) > (S_s(n+1) - S_s(n)) / S_s(n). The original compares all jobs for each slot; here the jobs stand in
order of length in a tree of maxima, so that a slot costs logarithmic time.
"""

from __future__ import annotations

from jupyter_elastic.scheduler.policies.common import Configured, Draft, above
from jupyter_elastic.scheduler.policies.elastic import ElasticOptions, Guard, seated, settle
from jupyter_elastic.scheduler.policies.order import shortest_first
from jupyter_elastic.scheduler.policies.speed import rates
from jupyter_elastic.types import JobView, Plan, View

AGING = 0.125
STAY = 4.0


class Afs(Configured):
    """Short jobs first, unless a longer one uses the slot much better."""

    name = "afs"
    summary = "Apathetic future share: weighs a job's length against how well it would use a slot."
    work_conserving = True

    class Options(ElasticOptions, frozen=True):
        pass

    options: Options

    def plan(self, view: View) -> Plan:
        """Plan minimums, the shortest first; then slot by slot to the top."""
        draft = Draft(view)
        draft.pin()
        order = seated(draft, shortest_first(draft, AGING, STAY))
        rank = {job.job: at for at, job in enumerate(order)}
        contest(draft, order)
        settle(
            draft,
            Guard(self.options, view.now),
            lambda jobs: contest(draft, sorted(jobs, key=lambda job: rank.get(job.job, 0))),
        )
        return draft.plan()


def contest(draft: Draft, jobs: list[JobView]) -> None:
    """Give free slots one step at a time to the job at the top; `jobs` are in order of length, shortest first."""
    if not draft.free:
        return
    speeds = [rates(job) for job in jobs]
    shorter = [0.0] * len(jobs)
    tree = Maxima(len(jobs))

    def update(at: int) -> None:
        workers = draft.workers[jobs[at].job]
        wider = above(jobs[at], workers)
        if not wider or wider - workers > draft.free:
            shorter[at] = 0.0
            tree.put(at, 0.0)
            return
        slow, fast = speeds[at](workers), speeds[at](wider)
        gain = max(0.0, fast - slow) / (wider - workers)
        shorter[at] = gain / slow if slow > 0 else gain
        tree.put(at, gain / fast if fast > 0 else 0.0)

    for at in range(len(jobs)):
        update(at)
    while draft.free:
        top = tree.next_above(0, 0.0)
        if top < 0:
            return
        while (longer := tree.next_above(top + 1, shorter[top])) >= 0:
            top = longer
        wider = above(jobs[top], draft.workers[jobs[top].job])
        if wider - draft.workers[jobs[top].job] <= draft.free:
            draft.give(jobs[top], wider)
        update(top)


class Maxima:
    """A tree of maxima over a row of numbers, which finds the next number above a bound."""

    def __init__(self, length: int) -> None:
        self.width = 1 << max(0, length - 1).bit_length()
        self.tree = [0.0] * (2 * self.width)

    def put(self, at: int, value: float) -> None:
        """Set a number."""
        tree = self.tree
        node = at + self.width
        tree[node] = value
        while node > 1:
            node //= 2
            top = max(tree[2 * node], tree[2 * node + 1])
            if tree[node] == top:
                return
            tree[node] = top

    def next_above(self, start: int, bound: float) -> int:
        """Return the first position from `start` on whose number is above `bound`; -1 if there is none."""
        if start >= self.width:
            return -1
        tree = self.tree
        node = start + self.width
        while tree[node] <= bound:
            while node & 1:
                node //= 2
            if not node:
                return -1
            node += 1
        while node < self.width:
            node *= 2
            if tree[node] <= bound:
                node += 1
        return node - self.width
