"""Trainings under a plan, batches by speed, and the command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from jupyter_elastic.balance import DataHost, Instance, solve
from jupyter_elastic.balance.balance_command import main
from jupyter_elastic.balance.batches import batch_sizes
from jupyter_elastic.balance.generate import generate
from jupyter_elastic.balance.simulate import simulate
from jupyter_elastic.types.errors import BadRequest


def test_the_simulated_training_takes_what_the_plan_says() -> None:
    for seed in range(5):
        one = generate("skewed", 8, seed)
        plan = solve(one, "greedy")
        seen = simulate(one, plan)
        assert seen.epoch_s == pytest.approx(plan.epoch_s)
        assert plan.transfer_s <= seen.transfer_s * (1 + 1e-9)
        assert seen.total_s == pytest.approx(plan.total_s, rel=0.1)
        assert simulate(one, solve(one, "none")).total_s == pytest.approx(plan.without_s)


def test_a_transfer_beside_the_first_epoch() -> None:
    for seed in range(3):
        one = generate("slow", 8, seed)
        plan = solve(one, "greedy", when="overlapped")
        seen = simulate(one, plan, when="overlapped")
        assert seen.total_s == pytest.approx(plan.total_s, rel=0.1)
        assert seen.total_s < simulate(one, plan).total_s


def test_uneven_steps_make_all_wait_for_the_slowest() -> None:
    one = generate("mild", 8, 1)
    plan = solve(one, "greedy")
    even, uneven = simulate(one, plan), simulate(one, plan, noise=0.2, seed=1)
    assert uneven.epoch_s > even.epoch_s
    assert simulate(one, plan, noise=0.2, seed=1) == uneven != simulate(one, plan, noise=0.2, seed=2)
    assert all(share >= -1e-9 for share in even.waiting.values())
    with pytest.raises(BadRequest, match="between 0 and 1"):
        simulate(one, plan, noise=2)
    with pytest.raises(BadRequest, match="seed"):
        simulate(one, plan, noise=0.1, seed=-1)


def test_an_endless_epoch_is_refused() -> None:
    hosts = (DataHost(name="a", samples=10, speed=0), DataHost(name="b", samples=0, speed=1))
    one = Instance(hosts=hosts, bandwidth=((0, 10), (10, 0)), sample_bytes=1, epochs=1)
    emptied = solve(one, "greedy")
    assert simulate(one, emptied).epoch_s == pytest.approx(10.0)
    stays = Instance(hosts=(hosts[1], hosts[0]), bandwidth=one.bandwidth, sample_bytes=1, epochs=1)
    with pytest.raises(BadRequest, match="never end"):
        simulate(stays, solve(generate("mild", 2, 0), "none"))


@given(some.integers(0, 300), some.lists(some.floats(0, 100), min_size=1, max_size=6).filter(any))
def test_batches_by_speed_are_the_best_split(total: int, speeds: list[float]) -> None:
    sizes = batch_sizes(total, speeds)
    assert sum(sizes) == total
    assert all(size == 0 for size, speed in zip(sizes, speeds, strict=True) if speed == 0)
    last = max((size / speed for size, speed in zip(sizes, speeds, strict=True) if size), default=0.0)
    for giver in range(len(sizes)):  # no single sample is better off elsewhere
        for taker in range(len(sizes)):
            if giver != taker and sizes[giver] and speeds[taker]:
                moved = list(sizes)
                moved[giver] -= 1
                moved[taker] += 1
                then = max(size / speed for size, speed in zip(moved, speeds, strict=True) if size)
                assert then >= last * (1 - 1e-9)


@pytest.mark.parametrize(("total", "speeds"), [(-1, [1.0]), (1, []), (1, [0.0]), (1, [float("nan"), 1.0]), (1, [-1.0])])
def test_batches_that_nobody_can_work_on_are_refused(total: int, speeds: list[float]) -> None:
    with pytest.raises(BadRequest, match="can't be split"):
        batch_sizes(total, speeds)


def test_the_command_generates_plans_simulates_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--generate", "skewed", "--hosts", "6", "--seed", "3"]) == 0
    file = tmp_path / "instance.json"
    file.write_text(capsys.readouterr().out)
    picture = tmp_path / "plan.png"
    assert main(["--instance", str(file), "--solver", "greedy", "--json", "--simulate", "--plot", str(picture)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {"solver", "moves", "epoch_s", "transfer_s", "total_s", "without_s", "why"} <= set(plan)
    assert set(plan["moves"][0]) == {"from", "to", "samples"}
    assert plan["total_s"] < plan["without_s"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["--instance", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "times as fast" in shown
    assert "host5" in shown


def test_the_answer_is_json_alone_whatever_a_library_prints(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HiGHS writes lines of its own, past `sys.stdout`."""

    def chatty(*given: object, **more: object) -> object:
        os.write(1, b"HighsMipSolverData::transform")
        return solve(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("jupyter_elastic.balance.balance_command.solve", chatty)
    file = tmp_path / "instance.json"
    file.write_bytes(msgspec.json.encode(generate("mild", 4, 0)))
    assert main(["--instance", str(file), "--json", "--overlap", "--simulate"]) == 0
    out, err = capfd.readouterr()
    answer = json.loads(out)
    assert answer["simulated"]["total_s"] == pytest.approx(answer["total_s"], rel=0.1)
    assert "HighsMip" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give either"),
        (["--instance", "a", "--generate", "mild"], "give either"),
        (["--instance", "/nowhere"], "No such file"),
        (["--generate", "mild", "--hosts", "0"], "1 to 1000"),
        (["--generate", "mild", "--seed", "-1"], "0 or more"),
        (["--solver", "best"], "invalid choice"),
    ],
)
def test_what_the_command_refuses(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err
