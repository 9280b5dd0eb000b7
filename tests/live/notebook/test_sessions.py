"""Sessions as a person meets them in a notebook."""

from __future__ import annotations

from jupyter_elastic.jobfiles.sessions import SessionFolder
from tests.live.notebook.conftest import Notebook


def test_a_notebooks_session_from_its_first_cell_to_its_end(notebook: Notebook) -> None:
    assert not notebook.run("data = 'the notebook'").error
    cell = notebook.run("%%distribute --session work --engine process --gpus 2\nimport os\nx = [rank]\nos.getpid()")
    assert not cell.error, cell.error
    pid = cell.result
    cell = notebook.run("%%distribute --session work --out x\nx.append(data)\ndata = 'the session'\nos.getpid()")
    assert not cell.error, cell.error
    assert cell.result == pid
    assert notebook.run("x").result == "[0, 'the notebook']"
    cell = notebook.run("%%distribute --session work\ndata")
    assert "the session's own data" in cell.printed
    assert cell.result == "'the session'"
    assert "has 2 workers, not 1" in notebook.run("%%distribute --session work --gpus 1\n1").error
    listed = str(notebook.run("%elastic sessions").views)
    assert "work" in listed
    assert "no slots held" in listed
    assert "with 2 workers" in str(vars(notebook.run("%elastic end work")))
    assert "there is no session 'work'" in notebook.run("%elastic end work").error
    assert "NameError" in notebook.run("%%distribute --session work --engine process\nx.append(1)\nprint(y)").error


def test_a_session_ends_with_its_kernel(notebook: Notebook) -> None:
    assert not notebook.run("%%distribute --session short --engine process --gpus 2\nx = 1").error
    folder = SessionFolder("short", notebook.pool.runtime / "sessions")
    known = [member.known for rank in range(2) if (member := folder.member(rank)) is not None]
    assert len(known) == 2
    notebook.restart()
    notebook.pool.all_gone(known)
    cell = notebook.run("%%distribute --session short --engine process\n'x' in globals()")
    assert cell.result == "False", cell.error
