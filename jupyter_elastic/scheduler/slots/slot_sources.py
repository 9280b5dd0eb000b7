"""Find the pool's slots: by NVML (one slot a GPU), CPU cores, or a file that the administrator wrote.

A source is polled at the start and every few seconds in a thread of its own. It receives the held slots, so that it can
tell foreign processes from the pool's: on a slot that nobody holds every process is foreign, and the slot is out until
the process is gone. Of a held slot it names all processes, and `foreign` judges them. Knows NVML and files; must not
know the core's state. Other sources come by entry point (`jupyter_elastic.hosts`): a class whose instances have
`hosts(held)`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec
import psutil
from msgspec import Meta
from msgspec.structs import replace

from jupyter_elastic.hostfiles import host_failures, host_providers, hosts_file, hosts_on_demand, shared_hosts
from jupyter_elastic.hostfiles.host_failures import HostFailure
from jupyter_elastic.hostfiles.hosts_file import host_name
from jupyter_elastic.hostfiles.hosts_on_demand import HostSource, SourceStatus
from jupyter_elastic.platform import paths
from jupyter_elastic.protocol.wire import FailedHost
from jupyter_elastic.scheduler.access.auth import user_name
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.types import GpuProcess, Host, Slot, SlotId
from jupyter_elastic.types.errors import BadRequest
from jupyter_elastic.types.texts import FOREIGN, in_use_by, visible

SLOTS_VARIABLE = "JUPYTER_ELASTIC_SLOTS"
FIRST_FOR_SERVERS = 1000
"""Index of a host's first slot for servers: the same whatever the number of GPUs, or of their instances."""
CORES_PER_SERVER = 4
"""Number of cores, on a machine with GPUs, for each slot for a parameter server."""
MAX_PROCESSES = 16
"""Maximum number of processes of a GPU that are inspected."""
NAMED = 3
"""Number of processes named in the reason why a slot is out."""


class Source(Protocol):
    """A source of the pool's hosts."""

    def hosts(self, held: frozenset[SlotId]) -> tuple[Host, ...]:
        """Return the present hosts; `held` are the slots that jobs hold. May block for a second; may raise."""
        ...


class Cpu:
    """This machine's cores, a slot each: `slots`, else `$JUPYTER_ELASTIC_SLOTS`, else all cores that we may use."""

    def __init__(self, slots: int | None = None) -> None:
        self._slots = slots if slots is not None else _slots_wanted()

    def hosts(self, held: frozenset[SlotId]) -> tuple[Host, ...]:  # noqa: ARG002 - cores are shared with everybody
        """Return this machine as one host."""
        return (Host(name=host_name(), kind="cpu", slots=tuple(Slot(index=index) for index in range(self._slots))),)


class Nvml:
    """This machine's GPUs as the driver knows them, MIG instances as slots of their own."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as problem:
            raise BadRequest(f"NVML does not answer ({problem}); is the NVIDIA driver loaded?") from problem
        self._name = host_name()

    def hosts(self, held: frozenset[SlotId]) -> tuple[Host, ...]:
        """Return one host with a slot for each GPU."""
        slots: list[Slot] = []
        labels: dict[str, str] = {}
        for number in range(self._nvml.nvmlDeviceGetCount()):
            gpu = self._nvml.nvmlDeviceGetHandleByIndex(number)
            labels.setdefault("gpu", self._model(gpu))
            for device in self._instances(gpu):
                index = len(slots)
                ours, pids = f"{self._name}:{index}" in held, self._pids(device)
                processes = tuple(process for pid in pids if (process := gpu_process(pid)) is not None)
                out = f"{FOREIGN} by pid {pids[0]}" if pids and not ours else ""
                if out and processes:
                    out = in_use_by(processes[:NAMED])
                uuid = self._nvml.nvmlDeviceGetUUID(device)
                slots.append(Slot(index=index, device=uuid, out=out, processes=processes if ours else ()))
        return (Host(name=self._name, kind="gpu", slots=tuple(slots), labels=labels),)

    def _model(self, gpu: Any) -> str:
        """Return the name of a GPU; empty if NVML does not tell."""
        try:
            name = self._nvml.nvmlDeviceGetName(gpu)
        except self._nvml.NVMLError:
            return ""
        return visible(name.decode(errors="replace") if isinstance(name, bytes) else str(name))[:200]

    def _instances(self, gpu: Any) -> list[Any]:
        """Return the MIG instances of a partitioned GPU, else the GPU itself."""
        nvml = self._nvml
        try:
            current, _pending = nvml.nvmlDeviceGetMigMode(gpu)
        except nvml.NVMLError:
            return [gpu]
        if current != nvml.NVML_DEVICE_MIG_ENABLE:
            return [gpu]
        found = []
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            try:
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number))
            except nvml.NVMLError:  # this place is not used
                continue
        return found

    def _pids(self, device: Any) -> list[int]:
        """Return the pids of the processes that use a device; none if we may not see them."""
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
        except self._nvml.NVMLError:
            return []
        return [process.pid for process in processes[:MAX_PROCESSES]]


class WithServers:
    """Hosts of another source; a host with GPUs gets `server_slots` slots for parameter servers beside them."""

    def __init__(self, source: Source, server_slots: int) -> None:
        self._source, self._server_slots = source, server_slots

    def hosts(self, held: frozenset[SlotId]) -> tuple[Host, ...]:
        """Return the other source's hosts with slots for servers."""
        return tuple(with_servers(host, self._server_slots) for host in self._source.hosts(held))


def with_servers(host: Host, count: int) -> Host:
    """Return the host with `count` slots for servers; unchanged if it has some, or has no GPUs."""
    if host.kind != "gpu" or not host.slots or any(slot.for_servers for slot in host.slots):
        return host
    more = (Slot(index=FIRST_FOR_SERVERS + number, for_servers=True) for number in range(count))
    return replace(host, slots=(*host.slots, *more))


class Static:
    """Hosts from a JSON file: `[{"name": "lab1", "kind": "gpu", "slots": 4}]`, or slots one by one.

    `slots` is a number, or a list of `{"index": 0, "device": "GPU-…", "out": "why"}`. A host with GPUs may have
    `"server_slots": 2` beside them, for parameter servers, or slots with `"for_servers": true`. The file is read at
    each poll, so that the administrator can take a host or a slot out.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.hosts(frozenset())

    def hosts(self, held: frozenset[SlotId]) -> tuple[Host, ...]:  # noqa: ARG002 - the file is the truth
        """Return the file's hosts; BadRequest names what is wrong with the file."""
        try:
            entries = msgspec.json.decode(self._path.read_bytes(), type=list[dict[str, Any]])
            return tuple(_host(entry) for entry in entries)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, TypeError) as problem:
            raise BadRequest(
                f"{self._path}: {problem}; expected a list of hosts such as "
                '[{"name": "lab1", "kind": "gpu", "slots": 4}]'
            ) from problem


def source(choice: str | None = None, *, slots: int | None = None, server_slots: int | None = None) -> Source:
    """Return the source of a pool: a file's path, an installed source's name, or this machine's devices.

    Without a choice: GPUs if NVML finds one (unless a number of CPU slots is given), else CPU cores. Beside GPUs are
    `server_slots` for parameter servers; without a number one for each four cores, if NVML has found the GPUs.
    """
    found = _source(choice, slots)
    if server_slots is None and isinstance(found, Nvml):
        server_slots = max(1, len(os.sched_getaffinity(0)) // CORES_PER_SERVER)
    return WithServers(found, server_slots) if server_slots else found


def _source(choice: str | None, slots: int | None) -> Source:
    if choice and choice not in plugins.names(plugins.HOSTS) and (os.sep in choice or Path(choice).exists()):
        return Static(choice)
    if choice == "cpu" or (not choice and (slots is not None or os.environ.get(SLOTS_VARIABLE))):
        return Cpu(slots)
    if choice:
        made: Source = plugins.load(plugins.HOSTS, choice)()
        return made
    try:
        gpus = Nvml()
        return gpus if any(host.slots for host in gpus.hosts(frozenset())) else Cpu()
    except Exception:  # no driver, no library, a driver that has lost its GPU: a machine without GPUs
        return Cpu()


def all_hosts(source: Source, held: frozenset[SlotId], state: Path | None) -> tuple[Host, ...]:
    """Return this machine's slots and, for a personal pool (with its state folder), other hosts in `hosts.json`.

    BadRequest if the source names more than one machine, or the file can't be read or names this machine too.
    """
    here = one_machine(source.hosts(held))
    others: tuple[Host, ...] = ()
    if state is not None:
        failures = host_failures.read(paths.runtime_dir_of(state))
        described = hosts_file.read(state)
        others = tuple(_other(host, failures.get(host.name)) for host in described)
        noted = hosts_on_demand.statuses(state)
        for wanted in hosts_on_demand.read(state):
            brought = [host for host in described if host.source == wanted.name]
            others += _to_come(wanted, brought, noted.get(wanted.name, SourceStatus()))
    return _together(here, others, f"{hosts_file.NAME} of the pool")


def shared_pool(source: Source, held: frozenset[SlotId]) -> tuple[Host, ...]:
    """Return this machine's slots and the other hosts that the administrator names for the shared pool.

    BadRequest as for `all_hosts`.
    """
    here = one_machine(source.hosts(held))
    others = [replace(_other(host, None), local_users=True) for host in shared_hosts.read()]
    return _together(here, others, str(shared_hosts.path()))


def kept_from(hosts: Iterable[Host], failed: Mapping[str, Mapping[str, FailedHost]]) -> tuple[Host, ...]:
    """Return the hosts, those named by the administrator closed to users that can't reach them until their next try.

    `failed`: by user and host.
    """
    now = time.time()

    def unreachable(host: Host) -> dict[str, str]:
        found = {user: ones[host.name] for user, ones in failed.items() if host.name in ones}
        return {user: one.why for user, one in found.items() if now < one.again_at}

    return tuple(replace(host, unreachable=unreachable(host)) if host.local_users else host for host in hosts)


def _together(here: Sequence[Host], others: Sequence[Host], named_by: str) -> tuple[Host, ...]:
    if twice := {host.name for host in here} & {host.name for host in others}:
        raise BadRequest(f"{named_by} names this machine too, {', '.join(twice)}: rename it there")
    return (*here, *others)


def _other(host: hosts_file.HostAddress, failure: HostFailure | None) -> Host:
    out = ""
    if failure is not None and time.time() < failure.again_at:
        again = time.strftime("%H:%M:%S", time.localtime(failure.again_at))
        times = f" {failure.failures} times in a row" if failure.failures > 1 else ""
        out = f"failed{times}, and is tried again at {again}: {failure.why}"
    if host.until is not None and time.time() >= host.until:
        out = f"its allocation ended at {time.strftime('%m-%d %H:%M:%S', time.localtime(host.until))}"
    devices = host.devices or ("",) * host.slots
    slots = tuple(Slot(index=index, device=device) for index, device in enumerate(devices))
    kind: Literal["gpu", "cpu"] = "gpu" if host.devices else "cpu"
    found = Host(name=host.name, kind=kind, slots=slots, labels=host.labels, url=host.url, until=host.until)
    found = with_servers(found, len(slots))  # how many cores it has nobody knows here
    return replace(found, slots=tuple(replace(slot, out=out) for slot in found.slots))


def _to_come(source: HostSource, brought: Sequence[hosts_file.HostAddress], status: SourceStatus) -> tuple[Host, ...]:
    """Return the slots of hosts that the source could still bring, all out, so that a job may request that many."""
    count = min((source.max_hosts - len(brought)) * source.slots, 10_000)
    out = hosts_on_demand.said(source, status, host_providers.waits(source.kind))
    slots = tuple(Slot(index=index, out=out) for index in range(count))
    return (Host(name=source.name, kind="cpu", slots=slots, url=source.way),) if slots else ()


def one_machine(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Return the hosts if a pool can serve them; BadRequest for more than one: workers start where their agent is."""
    if len(hosts) > 1:
        names = ", ".join(host.name for host in hosts[:5]) + (", …" if len(hosts) > 5 else "")
        raise BadRequest(
            f"a source of slots names one machine, and these are {len(hosts)}: {names}. All workers would run where "
            "their user's agent is, whatever their slots say. Name one host; a personal pool gets others by "
            f"`jupyter elastic host add`, a shared one by its administrator's {shared_hosts.path()}"
        )
    return hosts


def _slots_wanted() -> int:
    given = os.environ.get(SLOTS_VARIABLE, "")
    if given:
        if not given.isdigit() or not 1 <= int(given) <= 10_000:
            raise BadRequest(f"${SLOTS_VARIABLE} is {given!r}; expected a number of slots from 1 to 10000")
        return int(given)
    return len(os.sched_getaffinity(0))


def _host(entry: dict[str, Any]) -> Host:
    slots = entry.get("slots")
    if isinstance(slots, int) and not isinstance(slots, bool):
        entry = {**entry, "slots": [{"index": index} for index in range(slots)]}
    servers = msgspec.convert(entry.pop("server_slots", 0), Annotated[int, Meta(ge=0, le=10_000)])
    host = with_servers(msgspec.convert({"kind": "cpu", **entry}, Host), servers)
    if re.search(r"[:\s]", host.name):
        raise msgspec.ValidationError(f"the host name {host.name!r} holds a colon or a space")
    return host


def gpu_process(pid: int) -> GpuProcess | None:
    """Return the process that NVML calls by this pid; None if it has ended, or is outside our container."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return GpuProcess(
                pid=pid,
                started_at=process.create_time(),
                uid=process.uids().real,
                user=visible(user_name(process.uids().real)[:100]),
                name=visible(process.name()[:100]),
            )
    except (psutil.Error, ValueError):
        return None


def without_own(hosts: tuple[Host, ...], held: frozenset[SlotId]) -> tuple[Host, ...]:
    """Return the hosts without the mark "out" on slots whose foreign process is on a slot that is held now.

    A job may have come while the source was polled: its process is not foreign.
    """
    return tuple(
        replace(
            host,
            slots=tuple(
                replace(slot, out="") if slot.out.startswith(FOREIGN) and host.slot_id(slot.index) in held else slot
                for slot in host.slots
            ),
        )
        for host in hosts
    )
