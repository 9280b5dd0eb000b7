"""Tensors leave a device and come back: mapped files play it here, so the kernel says what is left there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.training.frameworks.device_memory import TensorParking
from jupyter_elastic.types.errors import EngineError
from jupyter_elastic.worker.device_parking import DeviceParking, ParkingStrategy
from tests.support.played_device import Played

torch = pytest.importorskip("torch")


@pytest.fixture
def device(tmp_path: Path) -> Played:
    return Played(tmp_path)


def made(device: Played) -> tuple[Any, Any, Any]:
    """A model with tied weights, its optimizer, and data, on the device."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Tanh(), torch.nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    with torch.no_grad():
        model[0].weight.data = device.tensor(model[0].weight.data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return model, optimizer, device.tensor(torch.arange(8.0).reshape(2, 4))


def train(model: Any, optimizer: Any, data: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_training_goes_on_as_if_it_had_never_left_its_device(device: Played) -> None:
    expected = train(*made(device), 6)
    model, optimizer, data = made(device)
    row = data[1]
    objects = [*model.parameters()]
    parking = TensorParking(device)
    assert train(model, optimizer, data, 3) == expected[:3]
    assert device.used() > 0
    assert parking.park() == 0  # the kernel has no mapping of its memory any more
    assert not device.holds(data.untyped_storage())
    parking.restore()
    assert device.holds(data.untyped_storage())
    assert device.holds(model[0].weight.untyped_storage())
    assert all(a is b for a, b in zip(model.parameters(), objects, strict=True))
    assert train(model, optimizer, data, 3) == expected[3:]
    data[1, 0] = 17.0
    assert row[0] == 17.0  # they share memory still


def test_what_can_not_be_found_stays_and_is_counted(device: Played) -> None:
    held = device.storage(8192)  # of no tensor
    kept = device.tensor(torch.ones(4))
    parking = TensorParking(device)
    assert parking.park() == 8192
    parking.restore()
    assert device.holds(kept.untyped_storage())
    assert kept.tolist() == [1.0] * 4
    del held


class _Way(ParkingStrategy):
    """One that does what its test says."""

    name = "played"
    moves = False

    def __init__(self, problem: str = "", missing: str = "") -> None:
        self.problem, self._missing, self.parked = problem, missing, False

    def missing(self) -> str:
        return self._missing

    def park(self) -> None:
        if self.problem:
            raise EngineError(self.problem)
        self.parked = True

    def restore(self, devices: str) -> None:
        self.devices = devices
        if self.problem:
            raise EngineError(self.problem)
        self.parked = False


def parking(*ways: ParkingStrategy) -> DeviceParking:
    found = DeviceParking()
    found._ways = list(ways)
    return found


def test_the_next_way_is_taken_where_one_fails_and_why_none_works_is_said() -> None:
    first, second = _Way("it is locked"), _Way()
    both = parking(first, second)
    assert both.park("a:0") == ""
    assert second.parked
    assert both.park("a:1") == ""  # parked still
    second.problem = "no room"
    with pytest.raises(EngineError, match="no room"):
        both.restore("a:0", "GPU-0")
    second.problem = ""
    both.restore("a:0", "GPU-0")
    assert not second.parked
    why = parking(first, _Way(missing="not installed")).park("a:0")
    assert why == "its memory can't leave the device (played: it is locked; played: not installed)"


def test_it_comes_back_on_another_device_only_where_the_way_can() -> None:
    way = _Way()
    one = parking(way)
    one.park("a:0")
    with pytest.raises(EngineError, match=r"on the device of slot a:0, this cell was given a:1.*variables are kept"):
        one.restore("a:1", "GPU-1")
    assert way.parked
    way.moves = True  # type: ignore[misc]
    one.restore("a:1", "GPU-1")
    assert not way.parked
    assert way.devices == "GPU-1"


def test_what_stayed_is_parked_where_it_is_though_a_cell_was_given_another_device() -> None:
    way = _Way("it is locked")
    one = parking(way)
    assert "it is locked" in one.park("a:0")
    with pytest.raises(EngineError, match=r"on the device of slot a:0, this cell was given a:1.*it is locked"):
        one.restore("a:1", "GPU-1")
    way.problem = ""
    assert one.park("a:1") == ""
    assert one.slot == "a:0"
    with pytest.raises(EngineError, match=r"on the device of slot a:0, this cell was given a:1"):
        one.restore("a:1", "GPU-1")
    one.restore("a:0", "GPU-0")
    assert not way.parked
