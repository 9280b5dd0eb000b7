"""Dynamic: running jobs get workers and servers that stay free, by their reported progress.

Source: Surya, *ConfigurationManager* (ITB 2019): trainings on parameter servers report periodically, and get workers
and servers once resources become free. Shrinking others for a job that waits too long is DRAGON's idea (Lin et al.,
CLOSER 2019). A job that does not report, or no more, does not grow; growth without a gain is taken back. Jobs start in
order at their minimum. A job at most doubles at a time, so that each step is measured before the next.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated

from msgspec import Meta

from jupyter_elastic.scheduler.policies.common import (
    Base,
    Configured,
    Draft,
    Ratio,
    above,
    below,
    least,
    seat,
    slots,
)
from jupyter_elastic.scheduler.policies.speed import time_left
from jupyter_elastic.types import JobView, Plan, View

STALE = 3.0
"""Number of the job's own periods without a report after which reports count as missing."""


class Dynamic(Configured):
    """Growth into slots that stay free, and back."""

    name = "dynamic"
    summary = "Running jobs that report grow into slots that stay free; back where it brings nothing, or others wait."
    work_conserving = False
    interval_s = 2.0

    class Options(Base, frozen=True):
        cooldown: Annotated[
            Ratio, Meta(description="slots are free, and a job has rested, this many times its rescale cost before")
        ] = 10.0
        patience_s: Annotated[Ratio, Meta(description="seconds that a job waits before others shrink for it")] = 30.0
        gain: Annotated[Ratio, Meta(description="growth that adds less than this share of the speed is taken back")] = (
            0.03
        )
        retry_s: Annotated[Ratio, Meta(description="seconds after which what brought nothing may be tried again")] = (
            600.0
        )
        workers_per_server: Annotated[
            float, Meta(ge=0.1, le=1000, description="a job gets another server when it has more workers for each")
        ] = 2.0

    options: Options

    def plan(self, view: View) -> Plan:
        """Plan present sizes, shrinks for waiting jobs, returns of useless growth, and growth."""
        draft = Draft(view)
        draft.keep_all()
        head = seat(draft, draft.by_priority(draft.waiting), strict=True)
        while head is not None and view.now - head.queued_at >= self.options.patience_s and self._admit(draft, head):
            head = seat(draft, draft.by_priority(draft.waiting), strict=True)
        for job in draft.running:
            self._take_back(draft, job)
        since = None
        if draft.free and head is None:
            memo = view.memo if isinstance(view.memo, dict) else {}
            noted = memo.get("free_since")
            since = float(noted) if isinstance(noted, int | float) and noted <= view.now else view.now
            self._grow(draft, since)
        return draft.plan(memo=None if since is None else {"free_since": since})

    def _admit(self, draft: Draft, head: JobView) -> bool:
        """Shrink others, silent jobs first, then those with most beyond their minimum; True if the job then fits."""
        need = slots(head, least(head)) - draft.free
        can = {
            job.job: job
            for job in draft.running
            if job.phase == "running" and draft.workers.get(job.job, 0) > least(job) > 0
        }
        if sum(draft.cost(job) - slots(job, least(job)) for job in can.values()) < need:
            return False
        while need > 0:
            job = max(
                can.values(),
                key=lambda one: (self._silent(draft.view, one), draft.cost(one) - slots(one, least(one)), one.job),
            )
            before = draft.cost(job)
            workers, servers = draft.size(job)
            fewer = below(job, workers)
            draft.resize(job, fewer, self._servers(job, fewer, servers))
            need -= before - draft.cost(job)
            if draft.workers[job.job] <= least(job):
                del can[job.job]
            draft.reasons[job.job] = f"makes room for job {head.job} of {head.owner}, which has waited long enough"
        return draft.give(head, least(head))

    def _servers(self, job: JobView, workers: int, servers: int) -> int:
        """Return the number of its servers that a job with `workers` workers keeps."""
        wanted = -int(-workers // self.options.workers_per_server)
        return max(job.min_servers, min(servers, wanted))

    def _take_back(self, draft: Draft, job: JobView) -> None:
        """Give a job the smallest measured size that is about as fast as its present one."""
        if not self._settled(draft.view, job) or draft.size(job) != (job.size.workers, job.size.servers):
            return
        speeds = _speeds(job)
        held = job.size.workers, job.size.servers
        if held not in speeds:
            return
        smaller = [
            size
            for size, speed in speeds.items()
            if size[0] <= held[0] and size[1] <= held[1] and size != held and job.allows(size[0])
            and job.min_servers <= size[1] <= job.max_servers and speeds[held] < speed * (1 + self.options.gain)
        ]  # fmt: skip
        before = draft.cost(job)
        if smaller and draft.resize(job, *min(smaller, key=lambda size: (sum(size), -speeds[size]))):
            back = draft.workers[job.job]
            draft.reasons[job.job] = f"{before} slots were not faster than {draft.cost(job)}: back to {back} workers"

    def _grow(self, draft: Draft, since: float) -> None:
        """Divide the free slots among jobs that may grow, one step each in turn, up to twice their size."""
        view = draft.view
        ready = [job for job in draft.running if self._ready(draft, job, since)]
        ready.sort(key=lambda job: (-job.priority, job.size.workers / job.max_slots, job.submitted_at, job.job))
        ring = deque(ready)
        while ring and draft.free:
            job = ring.popleft()
            workers, servers = draft.size(job)
            wider = above(job, workers)
            if wider and wider <= max(2 * job.size.workers, above(job, job.size.workers)):
                more = servers
                if wider / max(servers, 1) > self.options.workers_per_server and 0 < servers < job.max_servers:
                    more += 1
                for count in dict.fromkeys((more, servers)):
                    if not self._known_useless(view, job, (wider, count)) and draft.resize(job, wider, count):
                        ring.append(job)
                        draft.reasons[job.job] = "slots stay free and nobody waits"
                        break

    def _ready(self, draft: Draft, job: JobView, since: float) -> bool:
        view, rest = draft.view, self.options.cooldown * job.profile.rescale_cost_s
        held = job.size.workers, job.size.servers
        if not self._settled(view, job) or draft.size(job) != held or view.now - since < rest:
            return False
        if job.profile.report_period_s is None or held not in _speeds(job):
            return False
        if self._silent(view, job):
            every = job.profile.report_period_s
            draft.reasons[job.job] = f"{STALE:.0f} of its reports are missing (one in {every:.3g} s): it does not grow"
            return False
        return time_left(job, held[0]) > 2 * rest

    def _settled(self, view: View, job: JobView) -> bool:
        rest = self.options.cooldown * job.profile.rescale_cost_s
        return job.phase == "running" and (job.changed_at is None or view.now - job.changed_at >= rest)

    def _known_useless(self, view: View, job: JobView, size: tuple[int, int]) -> bool:
        """True if this size was measured recently and was no faster than the job's present one."""
        speeds = _speeds(job)
        speed, now = speeds.get(size), speeds[job.size.workers, job.size.servers]
        if speed is None or speed >= now * (1 + self.options.gain):
            return False
        return job.changed_at is not None and view.now - job.changed_at < self.options.retry_s

    @staticmethod
    def _silent(view: View, job: JobView) -> bool:
        """True if the job has not reported for longer than it used to; False for a job that never reported."""
        profile = job.profile
        if profile.reported_at is None or profile.report_period_s is None:
            return False
        return view.now - profile.reported_at > STALE * max(profile.report_period_s, 1.0)


def _speeds(job: JobView) -> dict[tuple[int, int], float]:
    return {(one.workers, one.servers): one.samples_per_s for one in job.profile.speeds}
