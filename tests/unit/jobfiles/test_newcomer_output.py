"""What a newcomer printed and showed before it joined goes to its rank, in order, or nowhere."""

from __future__ import annotations

from pathlib import Path

from jupyter_elastic.jobfiles import displays, newcomer_output
from jupyter_elastic.jobfiles.displays import Display
from jupyter_elastic.jobfiles.job_folder import JobFolder


def keep(job: Path) -> None:
    kept = newcomer_output.folder(job, "w3")
    kept.mkdir()
    (kept / "stdout").write_text("new\n")
    (kept / "stderr").write_text("oh\n")
    (kept / displays.FILE).write_bytes(displays.encode(Display(kind="display_data", after=4)) + b"\n")


def test_it_follows_what_the_rank_has_printed_before(tmp_path: Path) -> None:
    (tmp_path / "rank.1").mkdir()
    (tmp_path / "rank.1" / "stdout").write_text("before\n")
    keep(tmp_path)
    newcomer_output.merge(tmp_path, "w3", 1)
    newcomer_output.merge(tmp_path, "w3", 1)
    assert (tmp_path / "rank.1" / "stdout").read_text() == "before\nnew\n"
    assert (tmp_path / "rank.1" / "stderr").read_text() == "oh\n"
    assert [record.after for record, _ in displays.Reader(JobFolder(tmp_path), "rank.1").more()] == [11]
    assert [path.name for path in tmp_path.iterdir()] == ["rank.1"]


def test_of_one_that_starts_over_nothing_is_left(tmp_path: Path) -> None:
    keep(tmp_path)
    newcomer_output.merge(tmp_path, "w3", None)
    assert list(tmp_path.iterdir()) == []
