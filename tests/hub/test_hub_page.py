"""The Hub's page of the docs, followed from a clean system by its own commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import clean_system
from tests.support.hub import why_not
from tests.support.other_user import interpreter

MISSING = why_not() or clean_system.why_not()


@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_the_page_followed_from_a_clean_system(tmp_path: Path) -> None:
    said = clean_system.follow(Path(__file__).with_name("hub_page.py"), tmp_path, interpreter(), timeout_s=600)
    assert said["refused"] == "bob can't log in: 403"
    assert said["lab"] == 200
    assert said["answer"] == f"(42, {said['uid']})\n"
    assert said["database_for_bob"] == "cat: /srv/jupyterhub/jupyterhub.sqlite: Permission denied"
    (row,) = said["usage"]["rows"]
    assert row["user"] == "ann"
    (job,) = json.loads(said["seen_by_bob"])
    assert (job["owner"], job["spec"]["name"], job["spec"]["folder"]) == ("ann", "page", "")
