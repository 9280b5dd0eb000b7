"""The doctor: every check says something, a broken one is a finding, JSON has the promised keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_elastic.cli import doctor


@pytest.mark.horovod
def test_every_check_finds_something_here(pool_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.main(["--json"])
    findings = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert code == 0, findings
    assert set(findings) == {
        "Python", "Jupyter", "server extension", "daemon", "engines", "GPUs", "Horovod", "PyTorch", "Keras",
            "host name", "captures",
    }  # fmt: skip
    assert "torch" in findings["Horovod"]["found"]
    assert "horovod" in findings["engines"]["found"]
    assert "not running" in findings["daemon"]["found"]


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_moon() -> doctor.Finding:
        raise RuntimeError("new moon")

    monkeypatch.setattr(doctor, "CHECKS", (check_moon,))
    (finding,) = doctor.examine()
    assert finding.status == "error"
    assert "new moon" in finding.found


def test_advice_is_shown_to_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bad = doctor.Finding(check="moon", status="error", found="new", advice="wait two weeks")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: bad,))
    assert doctor.main([]) == 1
    assert "wait two weeks" in capsys.readouterr().out
