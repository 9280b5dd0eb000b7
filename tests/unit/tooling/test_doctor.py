"""The doctor: every check says something, a broken one is a finding, JSON has the promised keys."""

from __future__ import annotations

import importlib.util
import json
import threading
from pathlib import Path

import pytest

from jupyter_elastic.cli import doctor


@pytest.mark.horovod
def test_every_check_finds_something_here(pool_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.main(["--json"])
    findings = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert code == 0, findings
    assert set(findings) == {
        "Python", "Jupyter", "server extension", "daemon", "engines", "default engines", "GPUs", "Horovod", "PyTorch",
            "Keras", "host name", "captures", "warm parents",
        "TensorFlow's parameter servers",
    }  # fmt: skip
    assert "works with torch, tensorflow" in findings["Horovod"]["found"]
    assert "horovod" in findings["engines"]["found"]
    assert findings["default engines"]["found"] == (
        "horovod for training, TensorFlow; torch for torch.distributed; process for other cells"
    )
    assert "not running" in findings["daemon"]["found"]


def test_what_would_change_the_default_engines_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == "torch" else None)
    finding = doctor.check_default_engines()
    assert finding.found == "torch for training, torch.distributed; process for TensorFlow, other cells"
    assert "jupyter elastic admin build-horovod" in finding.advice


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_moon() -> doctor.Finding:
        raise RuntimeError("new moon")

    monkeypatch.setattr(doctor, "CHECKS", (check_moon,))
    monkeypatch.setattr(doctor, "_engines", list)
    (finding,) = doctor.examine(lambda _: None)
    assert finding.status == "error"
    assert "new moon" in finding.found


def test_advice_is_shown_to_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bad = doctor.Finding(check="moon", status="error", found="new", advice="wait two weeks")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: bad,))
    monkeypatch.setattr(doctor, "_engines", list)
    assert doctor.main([]) == 1
    assert "wait two weeks" in capsys.readouterr().out


def test_what_is_known_is_shown_while_a_slow_check_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    quick_shown = threading.Event()

    def check_slow() -> doctor.Finding:
        return doctor.Finding("slow", "ok" if quick_shown.wait(60) else "error", "")

    def show(finding: doctor.Finding) -> None:
        shown.append(finding.check)
        quick_shown.set()

    monkeypatch.setattr(doctor, "CHECKS", (check_slow, lambda: doctor.Finding("quick", "ok", "")))
    monkeypatch.setattr(doctor, "_engines", list)
    assert [(finding.check, finding.status) for finding in doctor.examine(show)] == [("slow", "ok"), ("quick", "ok")]
    assert shown == ["quick", "slow"]
