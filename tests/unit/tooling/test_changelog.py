"""Fragments of `changes/` become the newest section of CHANGELOG.md, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.changelog import ROOT, fragments, release

BEFORE = "# Changelog\n\nA preface.\n\n## 0.1.0 - 2026-11-23\n\n### Added\n\n- The first version.\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "CHANGELOG.md").write_text(BEFORE)
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").write_text("How fragments are named.\n")
    return tmp_path


def test_a_release_collects_the_fragments_by_kind_and_deletes_them(root: Path) -> None:
    (root / "changes" / "hosts.fixed.md").write_text("A host comes back.\nIt was left out.\n")
    (root / "changes" / "41.added.md").write_text("A command.\n")
    (root / "changes" / "view.added.md").write_text("A view.\n")
    release(root, "0.2.0", "2026-12-20")
    section = (
        "## 0.2.0 - 2026-12-20\n\n### Added\n\n- A command.\n- A view.\n\n"
        "### Fixed\n\n- A host comes back.\n  It was left out.\n\n"
    )
    assert (root / "CHANGELOG.md").read_text() == BEFORE.replace("## 0.1.0", section + "## 0.1.0")
    assert [path.name for path in (root / "changes").iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("hosts.mended.md", "0.2.0", "a fragment is named"),
        ("hosts.fixed.txt", "0.2.0", "a fragment is named"),
        ("hosts.fixed.md", "0.1.0", "a section of 0.1.0 already"),
        ("README.md", "0.2.0", "no fragment"),
    ],
)
def test_what_can_not_be_collected_is_refused_and_nothing_is_lost(
    root: Path, name: str, version: str, message: str
) -> None:
    (root / "changes" / name).write_text("A host comes back.\n")
    with pytest.raises(ValueError, match=message):
        release(root, version, "2026-12-20")
    assert (root / "CHANGELOG.md").read_text() == BEFORE
    assert (root / "changes" / name).exists()


def test_the_fragments_of_this_repository_have_a_kind() -> None:
    fragments(ROOT)
