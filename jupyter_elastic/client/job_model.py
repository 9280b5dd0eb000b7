"""Folds a job's events into the content of its screens.

Pure: no clock, no socket, no front end. `fold` each event once, in order; `screen(now)` at any time gives the view
model that the widget, the static display, the terminal and the server extension draw and do not compute. Reported
numbers are finite: the daemon leaves out others.
"""

from __future__ import annotations

import math
from collections import deque

from jupyter_elastic.client.curves import CurvePoint, MetricCurve, usage_curves
from jupyter_elastic.client.human_times import human_range, human_time
from jupyter_elastic.client.job_screen import JobScreen, SizePoint, SpeedFit, Tone
from jupyter_elastic.jobfiles.usage import ResourceUsage
from jupyter_elastic.jobfiles.usage_history import UsageHistory
from jupyter_elastic.types import (
    ENDED,
    Event,
    HoldEnded,
    HostsChanged,
    JobEnded,
    JobId,
    JobInfo,
    JobProgressed,
    JobRequeued,
    JobResized,
    JobRunning,
    JobSpec,
    JobStarted,
    JobSubmitted,
    Phase,
    Progress,
    RescaleRequested,
    Retention,
    SlotId,
    SlotsReleased,
    StopRequested,
    WorkerDied,
    WorkerReplaced,
    begins_again,
    size_stays,
)
from jupyter_elastic.types.texts import also_used_by

MAX_METRICS = 24
SPEED = "samples/s"
"""Name of the throughput's curve."""
MAX_SIZES = 500
_WINDOW = 40
"""Progress reports over which the speed is averaged."""


class JobModel:
    """The state behind one job's screen."""

    def __init__(self, job: JobId, *, kind: str = "cpu") -> None:
        self.job = job
        self.kind = kind
        self.spec: JobSpec | None = None
        self.owner = ""
        self.phase: Phase = "queued"
        self.seq = 0
        self.explanation = ""
        """The daemon's reason why the job waits; set by `explain`."""
        self.until = ""
        """Approximate start in the same explanation; a forecast replaces it."""
        self.forecast: tuple[float, float] | None = None
        """Earliest and latest likely start, seconds since the epoch, set by the what-if's caller."""
        self.use: ResourceUsage | None = None
        """The workers' use of the machine, set, like `usage`, by the reader of the job's folder."""
        self.usage = UsageHistory()
        self.speeds: SpeedFit | None = None
        """Measured and predicted speeds by size, set by their fit."""
        self.reason = ""
        self.submitted_at = 0.0
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.attempt = 0
        self.preemptions = 0
        self.slots: tuple[SlotId, ...] = ()
        self.sizes: list[SizePoint] = []
        self.progress: Progress | None = None
        self.elastic: bool | None = None
        """True once the cell has reached an elastic loop; until then its size stays."""
        self.stays = ""
        """Reason why the job does not grow: a worker could not join."""
        self.retention: Retention | None = None
        """Slots that its session keeps after its end; None: nothing."""
        self._committed: bool | None = None
        self._again = ""
        """Text on where training starts again after the job lost its slots."""
        self._also_used: dict[SlotId, str] = {}
        """Text on the users without a lease of a slot, by slot."""
        self._wanted = 0
        self._why = ""
        self._speed: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self._curves: dict[str, MetricCurve] = {}
        self._reports = 0

    @property
    def ended(self) -> bool:
        """True once the job is over for good."""
        return self.phase in ENDED

    def describe(self, info: JobInfo) -> None:
        """Start from the daemon's description of a job, for a view that joins without its events."""
        self.spec, self.owner, self.phase = info.spec, info.owner, info.phase
        self.reason, self.attempt, self.preemptions = info.reason, info.attempt, info.preemptions
        self.submitted_at, self.started_at, self.ended_at = info.submitted_at, info.started_at, info.ended_at
        self.slots, self.progress, self.elastic = info.slots, info.progress, info.elastic
        self._again = begins_again(info.elastic, info.attempt, preempted=info.preemptions > 0)
        self.retention, self.stays = info.retention, info.stays
        self._wanted = len(info.slots)

    def explain(self, text: str, until: str) -> bool:
        """Record the daemon's explanation (`wire.Explanation`); return whether it is new."""
        until = " ".join(until.split())
        explained = " ".join(text.split()).removesuffix(until).rstrip(), until
        new = explained != (self.explanation, self.until)
        self.explanation, self.until = explained
        return new

    def fold(self, event: Event) -> None:  # noqa: C901, PLR0912  a case for each event
        """Fold an event in; other jobs' events change nothing, of the pool's only those about its slots count."""
        data = event.data
        if event.seq <= self.seq:
            return
        if isinstance(data, HostsChanged):
            slots = {host.slot_id(slot.index): slot for host in data.hosts for slot in host.slots}
            self._also_used = {name: also_used_by(slot.processes) for name, slot in slots.items() if slot.processes}
        if getattr(data, "job", None) != self.job:
            return
        self.seq = event.seq
        match data:
            case JobSubmitted():
                self.spec, self.owner, self.submitted_at = data.spec, data.owner, event.at
            case JobStarted():
                self._start(event.at, data)
            case RescaleRequested():
                self.phase, self._wanted, self._why = "rescaling", len(data.slots), data.reason
            case JobRunning():
                self._run(event.at, data)
            case StopRequested():
                self.phase, self.reason = "stopping", data.reason or data.how
            case SlotsReleased():
                self.slots = tuple(slot for slot in self.slots if slot not in data.slots)
                self.retention = self.retention.without(data.slots) if self.retention is not None else None
            case JobProgressed():
                self._advance(event.at, data.progress)
            case WorkerDied() | WorkerReplaced():
                self.stays = data.text if isinstance(data, WorkerDied) and data.empty else self.stays
                self._size(event.at, len(self.slots), data.text)
            case JobRequeued():
                self.phase, self.reason, self.slots = "queued", data.reason or data.cause, ()
                self.preemptions += data.cause == "preempted"
                self._size(event.at, 0, f"{data.cause}: {data.reason}" if data.reason else data.cause)
                step = None if self.progress is None else self.progress.step
                self._committed = self._committed or self.elastic
                self._again = begins_again(self._committed, 1, preempted=data.cause == "preempted", step=step)
            case JobResized():
                self.spec = data.applied(self.spec) if self.spec is not None else None
                self.stays = ""
            case JobEnded():
                self.phase, self.reason, self.ended_at, self.slots = data.outcome, data.reason, event.at, ()
                self._size(event.at, 0, data.outcome)
                self.retention = data.retention(event.at, self.spec.hold_s if self.spec is not None else 0.0)
            case HoldEnded():
                self.retention = None
            case _:
                pass

    def screen(self, now: float) -> JobScreen:
        """Return the view model at `now`."""
        spec, progress = self.spec, self.progress or Progress()
        tone, state, detail = self._description(now)
        running = self.phase in {"running", "rescaling"}
        return JobScreen(
            job=self.job,
            name=spec.name if spec else "",
            owner=self.owner,
            engine=_engine(spec) if spec else "",
            phase=self.phase,
            tone=tone,
            state=state,
            detail=detail,
            warning=self._warning,
            unit=self.unit,
            slots=list(self.slots),
            min_slots=spec.min_slots if spec else 0,
            max_slots=spec.max_slots if spec else 0,
            sizes=list(self.sizes),
            fraction=self.fraction,
            eta_s=self._eta(now) if running else None,
            epoch=progress.epoch,
            epochs=progress.epochs,
            step=progress.step,
            training=progress.training,
            samples_per_s=progress.samples_per_s,
            metrics=[curve.series(name, self.submitted_at) for name, curve in self._curves.items()],
            use=self.use if self.slots and self.use is not None and self.use.fresh(now) else None,
            speeds=self.speeds,
            usage=usage_curves(self.usage.points, self.submitted_at),
            attempt=self.attempt,
            preemptions=self.preemptions,
            submitted_at=self.submitted_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            now=now,
        )

    @property
    def unit(self) -> str:
        """Name of a slot on this pool."""
        return "GPU" if self.kind == "gpu" else "CPU slot"

    @property
    def fraction(self) -> float | None:
        """Fraction of the training done, 0 to 1; None if the job does not report a total."""
        return 1.0 if self.phase == "completed" else fraction_done(self.progress)

    def hold(self, now: float) -> str:
        """Describe the slots that its session retains after its end; empty for none. For live views: soon outdated."""
        if (kept := self.retention) is None:
            return ""
        left_s = math.ceil(max(kept.until - now, 0.0))
        if kept.exclusive:
            return f"its session keeps {', '.join(kept.slots)} for {left_s} s more at most: {kept.reason}"
        return (
            f"its session keeps {self._count(kept.count)} for {left_s} s more, unless somebody waits" if left_s else ""
        )

    # --- inside -------------------------------------------------------------------------------------------------------

    def _start(self, at: float, data: JobStarted) -> None:
        self.phase, self.attempt, self.slots = "starting", data.attempt, data.slots
        self.started_at = self.started_at if self.started_at is not None else at
        self.reason, self._wanted, self._why = "", len(data.slots), data.reason
        self.elastic, self.stays = None, ""
        self._speed.clear()
        self._size(at, len(data.slots), data.reason or ("started" if data.attempt <= 1 else "started again"))

    def _run(self, at: float, data: JobRunning) -> None:
        before = len(self.slots)
        self.phase, self.slots, self._wanted, self.elastic = "running", data.slots, len(data.slots), data.elastic
        self._speed.clear()  # the old size's speed does not apply to the new one
        if len(data.slots) != (self.sizes[-1].slots if self.sizes else 0):
            verb = "grew" if len(data.slots) > before else "shrank"
            self._size(at, len(data.slots), self._why or verb, data.pause_s)

    def _size(self, at: float, slots: int, reason: str, pause_s: float = 0.0) -> None:
        if self.sizes and self.sizes[-1].slots == slots == 0:
            return
        self.sizes.append(SizePoint(at=at, slots=slots, reason=reason, pause_s=pause_s))
        if len(self.sizes) > MAX_SIZES:
            del self.sizes[0]

    def _advance(self, at: float, progress: Progress) -> None:
        if self.progress is not None and progress.training != self.progress.training:
            self._curves.clear()
            self._speed.clear()
        self.progress = progress
        self._reports += 1
        done = fraction_done(progress)
        if done is not None:
            if self._speed and done < self._speed[-1][1]:
                self._speed.clear()  # rolled back to a commit
            self._speed.append((at, done))
        x = progress.step if progress.step is not None else progress.epoch
        broken = dict.fromkeys(progress.not_finite, math.nan)
        speed = {} if progress.samples_per_s is None else {SPEED: progress.samples_per_s}
        for name, value in (progress.metrics | broken | speed).items():
            if name in self._curves or len(self._curves) < MAX_METRICS:
                point = CurvePoint(float(self._reports if x is None else x), value, at, progress.epoch)
                self._curves.setdefault(name, MetricCurve()).add(point)

    def _eta(self, now: float) -> float | None:
        progress = self.progress or Progress()
        total, done, speed = progress.total_samples, progress.samples, progress.samples_per_s
        at = self._speed[-1][0] if self._speed else now
        left: float | None = None
        if len(self._speed) >= 2 and self._speed[-1][1] > self._speed[0][1]:
            (t0, f0), (t1, f1) = self._speed[0], self._speed[-1]
            left = (1.0 - f1) * (t1 - t0) / (f1 - f0)
        elif total is not None and done is not None and speed:
            left = max(0.0, total - done) / speed
        return None if left is None else max(0.0, left - (now - at))

    @property
    def _warning(self) -> str:
        lost = self.phase == "queued" and self.attempt > 0 and self._again.startswith("begins anew")
        return self._again if lost else ""

    def _count(self, number: int) -> str:
        return f"{number} {self.unit}" + ("" if number == 1 else "s")

    @property
    def _needed(self) -> str:
        """The least that the job can start on; the demand of a parameter server depends on the pool."""
        servers = self.spec.min_servers if self.spec else 0
        beside = f" and {servers} for parameter servers" if servers > 1 else " and 1 for a parameter server"
        return self._count(self.spec.min_slots if self.spec else 1) + (beside if servers else "")

    def _description(self, now: float) -> tuple[Tone, str, str]:
        held = len(self.slots)
        took = human_time((self.ended_at or now) - (self.started_at or self.submitted_at))
        others = [f"{slot} is {self._also_used[slot]}" for slot in self.slots if slot in self._also_used]
        match self.phase:
            case "queued":
                paused = self.attempt > 0
                state = f"{'paused' if paused else 'waiting'}: {self._needed} needed"
                stuck = bool(self.explanation) and not self.until  # a forecast does not know this
                forecast = None if stuck else self.forecast
                if forecast is not None:
                    state += f"; starts in {human_range(forecast[0] - now, forecast[1] - now)}"
                goes_on = "" if self._warning else f"; {self._again}"
                resumes = f"{self.reason}{goes_on}. " if paused and self.reason else ""
                why = self.explanation if forecast is not None else f"{self.explanation} {self.until}".strip()
                return "wait", state, resumes + why.replace(f" It {self._again}.", "")
            case "starting":
                return "run", f"starting on {self._count(held)}", self._why
            case "running":
                stays = size_stays(self.spec, held, self.elastic) if self.spec else ""
                detail = "; ".join(filter(None, (*others, self.stays or self._why, stays)))
                return "run", f"running on {self._count(held)}", detail
            case "rescaling":
                verb = "growing" if self._wanted > held else "shrinking" if self._wanted < held else "moving"
                detail = "; ".join(filter(None, (*others, self._why)))
                return "change", f"{verb} from {held} to {self._count(self._wanted)}", detail
            case "stopping":
                return "change", f"stopping: {self.reason}", ""
            case "completed":
                return "good", f"completed in {took}", ""
            case "failed":
                return "bad", f"failed after {took}", self.reason
            case _:
                return "off", f"cancelled after {took}; its slots are free again", self.reason


def fraction_done(progress: Progress | None) -> float | None:
    """Return the fraction of the training that this report says is done, 0 to 1; None if it names no total."""
    if progress is None:
        return None
    for part, whole in ((progress.samples, progress.total_samples), (progress.epoch, progress.epochs)):
        if part is not None and whole:
            return min(1.0, max(0.0, part / whole))
    return None


def _engine(spec: JobSpec) -> str:
    return f"{spec.engine} ({spec.engine_reason})" if spec.engine_reason else spec.engine
