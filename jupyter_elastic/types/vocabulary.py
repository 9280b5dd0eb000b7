"""What all messages are made of: numbers and names with their limits, and what a pool consists of."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

JobId: TypeAlias = int
SlotId: TypeAlias = str
"""`host:index`, for example `lab1:3`."""

Phase: TypeAlias = Literal["queued", "starting", "running", "rescaling", "stopping", "completed", "failed", "cancelled"]
ENDED: frozenset[Phase] = frozenset({"completed", "failed", "cancelled"})
ACTIVE: frozenset[Phase] = frozenset({"starting", "running", "rescaling", "stopping"})

LOGICAL_WORKERS = "JUPYTER_ELASTIC_LOGICAL_WORKERS"
"""The variable by which `--logical` says how many logical workers a `training.State` has that names no number."""
BALANCE = "JUPYTER_ELASTIC_BALANCE"
"""The variable by which `--balance` says whether workers that are not equally fast get unequal shares of a batch."""
BALANCES = ("auto", "none", "greedy", "lp", "ilp")
"""What it may say: the solvers of `jupyter_elastic.balance`."""
MAX_WORKERS = "JUPYTER_ELASTIC_MAX_WORKERS"
"""The variable that tells a worker how many workers its job may have at most; not set where nobody knows."""

Right: TypeAlias = Literal["submit", "see-all", "policy", "administer"]
"""What a registered key may do: submit jobs and change its user's own, see all of others' jobs, switch the policy among
the installed ones, everything."""
SCOPE = "custom:jupyter-elastic:"
"""What a JupyterHub calls a right begins with this."""

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
PublicKey: TypeAlias = Annotated[str, Meta(min_length=40, max_length=40)]
"""A CURVE public key as Z85 text."""
Text: TypeAlias = Annotated[str, Meta(max_length=10_000)]
Label: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Path: TypeAlias = Annotated[str, Meta(max_length=4096)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]
Step: TypeAlias = Annotated[int, Meta(ge=0, le=2**53 - 1)]
"""As large as a page's JavaScript can count: long trainings take more than a million."""


class Record(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What all of them share: immutable, named fields, nothing unknown accepted.

    What a view holds ten thousand of is `gc=False`: among immutable things the collector can't find a cycle, and its
    walks over them would stand in the way of submits.
    """


class GpuProcess(Record, frozen=True, kw_only=True):
    """A process that uses a GPU, as the machine knows it."""

    pid: Count
    started_at: float
    """When it started, in seconds since the epoch: a pid is used again."""
    uid: Count
    user: Annotated[str, Meta(max_length=200)]
    name: Annotated[str, Meta(max_length=200)]

    def __str__(self) -> str:
        """For people: `bob (python, pid 4711)`."""
        return f"{self.user} ({self.name}, pid {self.pid})"


class Slot(Record, frozen=True, kw_only=True):
    """Room for one worker: a GPU or a share of the CPU cores."""

    index: Count
    device: Text = ""
    """The GPU's UUID; empty for CPU slots."""
    out: Text = ""
    """Why the slot can't be leased (foreign process, drained by the administrator); empty when it can."""
    processes: tuple[GpuProcess, ...] = ()
    """From a source of hosts: those on the GPU. In events: those of them that are not of the user who has leased it."""
    for_servers: bool = False
    """Of a CPU beside GPUs: for parameter servers alone. In a pool that has such slots servers take no others."""


class Host(Record, frozen=True, kw_only=True):
    """A machine of the pool."""

    name: Name
    kind: Literal["gpu", "cpu"]
    slots: tuple[Slot, ...]
    labels: dict[Name, Text] = {}
    """What it is, for jobs that ask for it: `gpu` is the name of its GPUs."""
    reach: Text = ""
    """The way there, such as `ssh://lab2`; empty: it is the daemon's own machine."""
    until: float | None = None
    """When it goes, as an allocation that ends, in seconds since the epoch; None: nobody knows."""
    unreachable: dict[Name, Text] = {}
    """Users who can't get there now, and why: their jobs get no slots on it."""
    local_users: bool = False
    """Only users of the daemon's machine get there, and not who has come by a key."""

    def slot_id(self, index: int) -> SlotId:
        """The pool-wide name of slot `index`."""
        return f"{self.name}:{index}"


class Drain(Record, frozen=True, kw_only=True):
    """Slots that an administrator keeps from new work; of the whole pool it is called maintenance."""

    target: Annotated[str, Meta(max_length=300)] = ""
    """A host, or a slot of it; empty: the whole pool."""
    reason: Text = ""
    by: Text
    at: float
    due_at: float | None = None
    """When the jobs that are still there are stopped and queued again; None: they run to their end."""

    def covers(self, host: str, slot: SlotId) -> bool:
        """Whether the slot is kept from new work by this."""
        return self.target in {"", host, slot}

    @property
    def text(self) -> str:
        """For people: `drained by ada: the fan is broken`."""
        what = "drained" if self.target else "maintenance"
        return f"{what} by {self.by}" + (f": {self.reason}" if self.reason else "")


class Size(Record, frozen=True, gc=False):
    """How many workers (and parameter servers) a job is given. Each takes one slot."""

    workers: Count
    servers: Count = 0

    @property
    def slots(self) -> int:
        """Slots in all."""
        return self.workers + self.servers


MAX_HOLD_S = 600.0
"""No session keeps slots longer in which nothing runs."""


class JobRequest(Record, frozen=True, kw_only=True, gc=False):
    """How many slots a person asked for, and on what terms."""

    min_slots: Annotated[int, Meta(ge=1, le=100_000)]
    max_slots: Annotated[int, Meta(ge=1, le=100_000)]
    sizes: tuple[int, ...] = ()
    """Allowed numbers of workers; empty: every number from `min_slots` to `max_slots`."""
    min_servers: Count = 0
    max_servers: Count = 0
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    preemptible: bool = True
    interactive: bool = False
    """Somebody waits for it: elastic jobs shrink at once to make room, and no policy pauses it. It runs for minutes."""
    deadline_at: float | None = None
    max_time_s: float | None = None
    """Running time after which the job is stopped as failed (Slurm's `--time`)."""
    estimate_s: float | None = None
    """The owner's guess of the running time at `min_slots`, for backfill."""
    on: Annotated[dict[Label, Label], Meta(max_length=20)] = {}
    """Labels that its hosts must have; `gpu=any` lets it mix kinds of GPU."""
    hold_s: Annotated[float, Meta(ge=0, le=MAX_HOLD_S)] = 0.0
    """So long after the end of a session's cell its slots are kept for the next one, unless somebody waits."""
    begins: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """It starts with exactly so many slots, whatever its range: its session has so many workers. 0: with any of it."""

    @property
    def slot_numbers(self) -> str:
        """For people: `2`, `1 to 4`, `1 or 2 or 4`."""
        whole = str(self.max_slots) if self.min_slots == self.max_slots else f"{self.min_slots} to {self.max_slots}"
        return " or ".join(map(str, self.sizes)) or whole

    @property
    def most_workers(self) -> int:
        """The largest number of workers that it may get."""
        return max((size for size in self.sizes if size <= self.max_slots), default=self.max_slots)


class JobSpec(JobRequest, frozen=True, kw_only=True, gc=False):
    """What a person asked for. The daemon never opens `folder`; only the owner's agent does."""

    name: Name
    folder: Path
    """Absolute path of the job's folder, written by its owner before the submit: payload, logs, results, commits."""
    python: Path
    """The interpreter that runs the workers: the kernel's own."""
    engine: Name = "horovod"
    engine_reason: Annotated[str, Meta(max_length=200)] = ""
    """Why it has that engine; empty when it was asked for."""
    group: Annotated[str, Meta(max_length=200)] = ""
    notebook: Path = ""
    cell: Annotated[str, Meta(max_length=200)] = ""
    session: Annotated[str, Meta(max_length=32)] = ""
    """Its owner's session, of which one cell runs at a time, in the order of their submits; empty: none."""
    host: Annotated[str, Meta(max_length=200)] = ""
    """The one where it can run, as its session's workers are there: it waits for slots there. Empty, or no host of the
    pool's: anywhere."""
    one_host: bool = False
    """Its workers find each other on one host only, whichever that is."""
    prefers: Annotated[tuple[Annotated[str, Meta(max_length=300)], ...], Meta(max_length=1024)] = ()
    """Slots that it is given before others that are free on their host, in this order: where its session was."""


class AgentPlace(Record, frozen=True, kw_only=True):
    """Where an agent is: two agents of one place see the same files and the same processes."""

    place: Annotated[str, Meta(max_length=200)]
    home: Annotated[str, Meta(max_length=200)] = ""
    """Names the state folder: whoever has the same one sees the jobs' folders, and whether a driver holds its lock."""
    description: Annotated[str, Meta(max_length=500)] = field(default="", name="words")
    """For people. Journals call it `words`."""


MAX_METRICS = 100
"""In one report."""
MetricName: TypeAlias = Annotated[str, Meta(max_length=200)]


class Progress(Record, frozen=True, kw_only=True):
    """What rank 0 last said of its training. Counters never go back except after a rollback to a commit."""

    training: Count = 1
    """Its number within the cell: each begins with counters of its own."""
    step: Step | None = None
    epoch: float | None = None
    epochs: float | None = None
    samples: float | None = None
    """Samples trained so far, over all ranks."""
    total_samples: float | None = None
    samples_per_s: float | None = None
    world_size: Count | None = None
    noise_scale: float | None = None
    """Gradient noise scale in samples (McCandlish et al. 2018), where the job reports it."""
    metrics: dict[MetricName, float] = {}
    not_finite: tuple[MetricName, ...] = ()
    """Metrics that are NaN or infinite now; in an event they are named here and left out of `metrics`."""
