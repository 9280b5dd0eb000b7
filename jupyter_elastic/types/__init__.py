"""The vocabulary: every message and record that two parts of the system exchange.

Knows nothing else: no clock, no socket, no framework. Times are seconds since the
epoch (`*_at`) or durations in seconds (`*_s`). All structs are frozen; what changes is a new struct.
"""

from __future__ import annotations

from jupyter_elastic.types.effects import AnyEffect, Launch, Rescale, Stop
from jupyter_elastic.types.events import (
    AgentChanged,
    AnyEventData,
    AsksRefused,
    BooksRestored,
    DrainsChanged,
    Event,
    EventData,
    HostsChanged,
    JobEnded,
    JobProgressed,
    JobRequeued,
    JobResized,
    JobRunning,
    JobsForgotten,
    JobStarted,
    JobSubmitted,
    KeyRegistered,
    KeyRevoked,
    PlanAccepted,
    PlanRejected,
    PolicyUsed,
    RescaleRequested,
    SharesChanged,
    SlotsReleased,
    StopRequested,
    WorkerDied,
    WorkerReplaced,
)
from jupyter_elastic.types.policy import HostView, JobView, Plan, Policy, Profile, Speed, View
from jupyter_elastic.types.screens import JobInfo, PolicyInfo, SlotInfo, size_stays
from jupyter_elastic.types.stimuli import (
    AgentReported,
    Cancel,
    DeathReported,
    DrainSlots,
    ExitReported,
    Forget,
    HostsReported,
    PolicyFailed,
    ProgressReported,
    Propose,
    Refuse,
    RegisterKey,
    ReleaseReported,
    ReplacementReported,
    Report,
    Resize,
    Restore,
    RevokeKey,
    RunningReported,
    Stimulus,
    Submit,
    Tick,
    UndrainSlots,
    UsePolicy,
    UseShares,
)
from jupyter_elastic.types.vocabulary import (
    ACTIVE,
    ENDED,
    LOGICAL_WORKERS,
    MAX_WORKERS,
    SCOPE,
    AgentPlace,
    Drain,
    GpuProcess,
    Host,
    JobId,
    JobRequest,
    JobSpec,
    Name,
    Phase,
    Progress,
    PublicKey,
    Right,
    Size,
    Slot,
    SlotId,
)
