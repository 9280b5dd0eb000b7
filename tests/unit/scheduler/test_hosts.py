"""Where slots come from."""
# ruff: noqa: N802 - NVML names its functions so

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_elastic.scheduler.slots import slot_sources
from jupyter_elastic.scheduler.slots.slot_sources import Cpu, Nvml, Static, one_machine, source
from jupyter_elastic.types import Host, Slot
from jupyter_elastic.types.errors import BadRequest, NotFound

NOBODY: frozenset[str] = frozenset()


def test_cpu_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(slot_sources.SLOTS_VARIABLE, raising=False)
    (host,) = Cpu().hosts(NOBODY)
    assert host.name == slot_sources.host_name()
    assert ":" not in host.name
    assert len(host.slots) >= 1
    monkeypatch.setenv(slot_sources.SLOTS_VARIABLE, "7")
    assert len(source().hosts(NOBODY)[0].slots) == 7
    assert len(source(slots=3).hosts(NOBODY)[0].slots) == 3
    for wrong in ("0", "x", "-1", "99999"):
        monkeypatch.setenv(slot_sources.SLOTS_VARIABLE, wrong)
        with pytest.raises(BadRequest, match="number of slots"):
            source()


def test_a_file_of_hosts_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text(
        '[{"name": "a", "kind": "gpu", "slots": 2}, {"name": "b", "slots": [{"index": 4, "out": "broken"}]}]'
    )
    static = source(str(path))
    assert static.hosts(NOBODY) == (
        Host(name="a", kind="gpu", slots=(Slot(index=0), Slot(index=1))),
        Host(name="b", kind="cpu", slots=(Slot(index=4, out="broken"),)),
    )
    path.write_text("[]")
    assert static.hosts(NOBODY) == ()


def test_slots_for_servers_lie_beside_gpus_alone(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text('[{"name": "a", "kind": "gpu", "slots": 1, "server_slots": 2}]')
    (host,) = source(str(path), server_slots=5).hosts(NOBODY)
    assert [(slot.index, slot.for_servers) for slot in host.slots] == [(0, False), (1000, True), (1001, True)]
    path.write_text('[{"name": "a", "kind": "gpu", "slots": 1}, {"name": "b", "slots": 1}]')
    gpus, cores = source(str(path), server_slots=3).hosts(NOBODY)
    assert sum(slot.for_servers for slot in gpus.slots) == 3
    assert cores == Host(name="b", kind="cpu", slots=(Slot(index=0),)), "servers take cores as workers do"
    path.write_text('[{"name": "a", "kind": "gpu", "slots": 1, "server_slots": -1}]')
    with pytest.raises(BadRequest, match="expected a list of hosts"):
        Static(path)


def test_gpus_that_were_found_have_a_slot_for_servers_for_each_four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml.__new__(Nvml)
    nvml._nvml, nvml._name = _Driver(), "lab"
    monkeypatch.setattr(slot_sources, "_source", lambda choice, slots: nvml)
    monkeypatch.setattr(slot_sources.os, "sched_getaffinity", lambda pid: set(range(9)))
    assert sum(slot.for_servers for slot in source().hosts(NOBODY)[0].slots) == 2
    assert not any(slot.for_servers for slot in source(server_slots=0).hosts(NOBODY)[0].slots)


def test_a_pool_is_one_machine() -> None:
    lab = Host(name="lab1", kind="cpu", slots=(Slot(index=0),))
    assert one_machine((lab,)) == (lab,)
    with pytest.raises(BadRequest, match="one machine, and these are 2: lab1, lab2"):
        one_machine((lab, Host(name="lab2", kind="cpu", slots=(Slot(index=0),))))


@pytest.mark.parametrize(
    "content",
    [
        "", "{}", '["a"]', '[{"slots": 2}]', '[{"name": "a"}]', '[{"name": "a:b", "slots": 1}]',
        '[{"name": "a", "slots": -1, "x": 1}]', '[{"name": "a", "kind": "tpu", "slots": 1}]', "\x00",
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "hosts.json"
    path.write_text(content)
    with pytest.raises(BadRequest, match=r"hosts\.json.*expected a list of hosts"):
        Static(path)


def test_an_unknown_source_is_named() -> None:
    with pytest.raises(NotFound, match=r"no source of hosts 'nvm'; there are .*did you mean nvml"):
        source("nvm")


class _Driver(SimpleNamespace):
    """NVML's answers for a machine with a plain GPU, one cut into two instances, and one that a stranger uses."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        return f"gpu{number}"

    def nvmlDeviceGetMigMode(self, gpu: str) -> tuple[int, int]:
        if gpu == "gpu0":
            raise self.NVMLError("not supported")
        return (1, 1) if gpu == "gpu1" else (0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, _gpu: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: str, number: int) -> str:
        if number not in (0, 3):
            raise self.NVMLError("not found")
        return f"{gpu}-mig{number}"

    def nvmlDeviceGetName(self, device: str) -> str:
        return "NVIDIA A100-SXM4-80GB"

    def nvmlDeviceGetUUID(self, device: str) -> str:
        return f"GPU-{device}"

    def nvmlDeviceGetComputeRunningProcesses(self, device: str) -> list[SimpleNamespace]:
        if "mig" in device:
            raise self.NVMLError("no permission")
        return [SimpleNamespace(pid=1)] if device == "gpu2" else []


def test_gpus_instances_and_strangers() -> None:
    """The driver is played: this machine may have none. Names and UUIDs are what the driver gives."""
    nvml = Nvml.__new__(Nvml)
    nvml._nvml, nvml._name = _Driver(), "lab"
    (host,) = nvml.hosts(NOBODY)
    assert host.kind == "gpu"
    assert [(slot.index, slot.device) for slot in host.slots] == [
        (0, "GPU-gpu0"), (1, "GPU-gpu1-mig0"), (2, "GPU-gpu1-mig3"), (3, "GPU-gpu2"),
    ]  # fmt: skip
    assert [bool(slot.out) for slot in host.slots] == [False, False, False, True]
    assert "in use outside the pool" in host.slots[3].out
    (host,) = nvml.hosts(frozenset({"lab:3"}))
    assert not host.slots[3].out, "the process on a leased slot is its job's"


def test_without_a_driver_slots_are_cores() -> None:
    try:
        Nvml()
    except BadRequest as problem:
        assert "driver" in str(problem)  # noqa: PT017
        assert source().hosts(NOBODY)[0].kind == "cpu"
