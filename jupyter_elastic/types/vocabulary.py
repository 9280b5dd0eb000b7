"""Basic types of all messages: numbers and names with their limits, and the parts of a pool."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal, Self, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

JobId: TypeAlias = int
SlotId: TypeAlias = str
"""`host:index`, for example `lab1:3`."""

Phase: TypeAlias = Literal["queued", "starting", "running", "rescaling", "stopping", "completed", "failed", "cancelled"]
ENDED: frozenset[Phase] = frozenset({"completed", "failed", "cancelled"})
ACTIVE: frozenset[Phase] = frozenset({"starting", "running", "rescaling", "stopping"})

LOGICAL_WORKERS = "JUPYTER_ELASTIC_LOGICAL_WORKERS"
"""Variable by which `--logical` sets the number of logical workers of a `training.State` that names none."""
BALANCE = "JUPYTER_ELASTIC_BALANCE"
"""Variable by which `--balance` sets whether workers of unequal speed get unequal shares of a batch."""
BALANCES = ("auto", "none", "greedy", "lp", "ilp")
"""Values of `BALANCE`: the solvers of `jupyter_elastic.balance`."""
MAX_WORKERS = "JUPYTER_ELASTIC_MAX_WORKERS"
"""Variable that tells a worker the maximum number of workers of its job; not set if unknown."""

Right: TypeAlias = Literal["submit", "see-all", "policy", "administer"]
"""Right of a registered key: submit jobs and change its user's own, see all jobs of others, switch the policy among the
installed ones, do everything."""
SCOPE = "custom:jupyter-elastic:"
"""Prefix of the JupyterHub scopes that stand for rights."""

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
PublicKey: TypeAlias = Annotated[str, Meta(min_length=40, max_length=40)]
"""A CURVE public key as Z85 text."""
Text: TypeAlias = Annotated[str, Meta(max_length=10_000)]
Label: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Path: TypeAlias = Annotated[str, Meta(max_length=4096)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]
Step: TypeAlias = Annotated[int, Meta(ge=0, le=2**53 - 1)]
"""Step number up to the largest that a page's JavaScript can count: long trainings take more than a million."""


class Record(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of all records: immutable, with named fields, nothing unknown accepted.

    Records that a view holds by the ten thousand have `gc=False`: among immutable things the collector can't find a
    cycle, and its walks over them would delay submits.
    """


class GpuProcess(Record, frozen=True, kw_only=True):
    """A process that uses a GPU, as the machine knows it."""

    pid: Count
    started_at: float
    """Start of the process in seconds since the epoch; needed because a pid is used again."""
    uid: Count
    user: Annotated[str, Meta(max_length=200)]
    name: Annotated[str, Meta(max_length=200)]

    def __str__(self) -> str:
        """Format for people: `bob (python, pid 4711)`."""
        return f"{self.user} ({self.name}, pid {self.pid})"


class Slot(Record, frozen=True, kw_only=True):
    """Room for one worker: a GPU or a share of the CPU cores."""

    index: Count
    device: Text = ""
    """UUID of the GPU; empty for CPU slots."""
    out: Text = ""
    """Reason why the slot can't be leased (foreign process, drained by the administrator); empty if it can."""
    processes: tuple[GpuProcess, ...] = ()
    """Processes on the GPU (from a source of hosts), or those not of the user who has leased it (in events)."""
    for_servers: bool = False
    """True for a CPU slot beside GPUs for parameter servers alone; if there are such slots servers take no others."""


class Host(Record, frozen=True, kw_only=True):
    """A machine of the pool."""

    name: Name
    kind: Literal["gpu", "cpu"]
    slots: tuple[Slot, ...]
    labels: dict[Name, Text] = {}
    """Labels that jobs may ask for; `gpu` is the name of the host's GPUs."""
    url: Text = field(name="reach", default="")
    """URL of the host, such as `ssh://lab2`; empty: the daemon's own machine."""
    until: float | None = None
    """End of the host, as of an allocation, in seconds since the epoch; None: unknown."""
    unreachable: dict[Name, Text] = {}
    """Reasons by user who can't reach the host now: their jobs get no slots on it."""
    local_users: bool = False
    """True if only users of the daemon's machine can reach the host, and not users who connected by a key."""

    def slot_id(self, index: int) -> SlotId:
        """Return the pool-wide name of slot `index`."""
        return f"{self.name}:{index}"


class Drain(Record, frozen=True, kw_only=True):
    """Slots that an administrator keeps from new work; for the whole pool it is called maintenance."""

    target: Annotated[str, Meta(max_length=300)] = ""
    """Host or slot; empty: the whole pool."""
    reason: Text = ""
    by: Text
    at: float
    due_at: float | None = None
    """Time at which jobs that are still there are stopped and requeued; None: they run to their end."""

    def covers(self, host: str, slot: SlotId) -> bool:
        """True if the drain keeps the slot from new work."""
        return self.target in {"", host, slot}

    @property
    def text(self) -> str:
        """Text for people: `drained by ada: the fan is broken`."""
        what = "drained" if self.target else "maintenance"
        return f"{what} by {self.by}" + (f": {self.reason}" if self.reason else "")


class Size(Record, frozen=True, gc=False):
    """Number of workers and parameter servers of a job; each takes one slot."""

    workers: Count
    servers: Count = 0

    @property
    def slots(self) -> int:
        """Slots of workers and servers together."""
        return self.workers + self.servers


MAX_HOLD_S = 600.0
"""Maximum seconds that a session keeps slots on which nothing runs."""


class JobRequest(Record, frozen=True, kw_only=True, gc=False):
    """Number of slots that a person asked for, and the conditions."""

    min_slots: Annotated[int, Meta(ge=1, le=100_000)]
    max_slots: Annotated[int, Meta(ge=1, le=100_000)]
    sizes: tuple[int, ...] = ()
    """Allowed numbers of workers; empty: every number from `min_slots` to `max_slots`."""
    min_servers: Count = 0
    max_servers: Count = 0
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    preemptible: bool = True
    interactive: bool = False
    """True if a person waits for the job, which runs for minutes: elastic jobs shrink at once, no policy pauses it."""
    deadline_at: float | None = None
    max_time_s: float | None = None
    """Seconds of running time after which the job is stopped as failed (Slurm's `--time`)."""
    estimate_s: float | None = None
    """Owner's guess of the running time at `min_slots`, in seconds, for backfill."""
    on: Annotated[dict[Label, Label], Meta(max_length=20)] = {}
    """Labels that the job's hosts must have; `gpu=any` allows mixed kinds of GPU."""
    hold_s: Annotated[float, Meta(ge=0, le=MAX_HOLD_S)] = 0.0
    """Seconds that a session's slots are kept for its next cell after a cell, unless another job waits."""
    begins: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Exact number of slots to start with, whatever the range: the session's workers. 0: any in the range."""

    @property
    def slot_numbers(self) -> str:
        """Text for people: `2`, `1 to 4`, `1 or 2 or 4`."""
        whole = str(self.max_slots) if self.min_slots == self.max_slots else f"{self.min_slots} to {self.max_slots}"
        return " or ".join(map(str, self.sizes)) or whole

    @property
    def max_workers(self) -> int:
        """Maximum number of workers that the job may get."""
        return max((size for size in self.sizes if size <= self.max_slots), default=self.max_slots)


class JobSpec(JobRequest, frozen=True, kw_only=True, gc=False):
    """A job as a person submitted it. The daemon never opens `folder`; only the owner's agent does."""

    name: Name
    folder: Path
    """Absolute path of the job's folder, written by its owner before the submit: payload, logs, results, commits."""
    python: Path
    """Interpreter that runs the workers: the kernel's own."""
    engine: Name = "horovod"
    engine_reason: Annotated[str, Meta(max_length=200)] = ""
    """Reason why the job has that engine; empty if it was requested."""
    group: Annotated[str, Meta(max_length=200)] = ""
    notebook: Path = ""
    cell: Annotated[str, Meta(max_length=200)] = ""
    session: Annotated[str, Meta(max_length=32)] = ""
    """Owner's session, which runs one cell at a time in the order of their submits; empty: none."""
    host: Annotated[str, Meta(max_length=200)] = ""
    """Host where the job can run and waits for slots, because its session's workers are there. Empty, or no host of the
    pool: anywhere."""
    one_host: bool = False
    """True if the workers find each other on one host only, whichever that is."""
    prefers: Annotated[tuple[Annotated[str, Meta(max_length=300)], ...], Meta(max_length=1024)] = ()
    """Slots, in order, that the job gets before other free slots of their host: those that its session last used."""


class JobChange(Record, frozen=True, kw_only=True):
    """A change of what a job asked for; what is not set stays. With `sizes` alone the range follows from them."""

    min_slots: int | UnsetType = UNSET
    max_slots: int | UnsetType = UNSET
    sizes: tuple[int, ...] | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    deadline_at: float | UnsetType | None = UNSET

    def applied(self, spec: JobSpec) -> JobSpec:
        """Return the spec with this change."""
        found = {name: getattr(self, name) for name in JobChange.__struct_fields__}
        return replace(spec, **{name: value for name, value in found.items() if value is not UNSET})


class Retention(Record, frozen=True, kw_only=True):
    """Slots that a session keeps for its next cell after a cell has ended."""

    count: Count
    until: float
    """Latest end, in seconds since the epoch."""
    slots: tuple[SlotId, ...] = ()
    """The kept slots if they are exclusive: the session's memory can't leave their devices. Otherwise empty: the slots
    are kept by number, and only from jobs that would grow, until another job waits."""
    reason: Text = ""
    """Reason why the memory can't leave."""

    @property
    def exclusive(self) -> bool:
        """True if nobody else can have the slots."""
        return bool(self.slots)

    @classmethod
    def of(cls, held: int, until: float, pinned: tuple[SlotId, ...], reason: str, pinned_until: float) -> Self | None:
        """Return what messages and the journal say of it in their words; None: nothing is kept."""
        if pinned:
            return cls(count=len(pinned), until=pinned_until, slots=pinned, reason=reason)
        return cls(count=held, until=until) if held else None

    def without(self, slots: Collection[SlotId]) -> Retention | None:
        """Return what is kept once these slots are released; None: nothing."""
        if not self.exclusive:
            return self
        left = tuple(slot for slot in self.slots if slot not in slots)
        return replace(self, count=len(left), slots=left) if left else None


class AgentOrigin(Record, frozen=True, kw_only=True):
    """Origin of an agent: two agents with the same `place` see the same files and the same processes."""

    place: Annotated[str, Meta(max_length=200)]
    home: Annotated[str, Meta(max_length=200)] = ""
    """Name of the state folder: agents with the same one see the jobs' folders, and if a driver holds its lock."""
    description: Annotated[str, Meta(max_length=500)] = field(default="", name="words")
    """Text for people. Journals call it `words`."""


MAX_METRICS = 100
"""Maximum number of metrics in one report."""
MetricName: TypeAlias = Annotated[str, Meta(max_length=200)]


class Progress(Record, frozen=True, kw_only=True):
    """Latest training progress reported by rank 0. Counters never go back except after a rollback to a commit."""

    training: Count = 1
    """Number of the training within the cell; each training has counters of its own."""
    step: Step | None = None
    epoch: float | None = None
    epochs: float | None = None
    samples: float | None = None
    """Samples trained so far, over all ranks."""
    total_samples: float | None = None
    samples_per_s: float | None = None
    world_size: Count | None = None
    noise_scale: float | None = None
    """Gradient noise scale in samples (McCandlish et al. 2018), if the job reports it."""
    metrics: dict[MetricName, float] = {}
    not_finite: tuple[MetricName, ...] = ()
    """Names of metrics that are NaN or infinite now; an event leaves them out of `metrics`."""
