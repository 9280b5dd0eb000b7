"""Jobs by name, help, near misses, variables of the environment, sessions: what a person types."""

from __future__ import annotations

from tests.live.notebook.conftest import Notebook

HEAD = "%%distribute --engine process "


def test_a_job_is_found_by_its_name(notebook: Notebook) -> None:
    for number in range(2):
        assert not notebook.run(HEAD + f"--name digits -o job{number}\nprint('run', {number})").error
    cell = notebook.run("%elastic logs digits")
    assert "run 1\n" in cell.printed
    assert "2 jobs are called digits" in cell.printed
    assert "completed" in notebook.run("%elastic explain digits").printed + str(notebook.run("%elastic jobs -a").views)
    cell = notebook.run("%elastic attach digits")
    assert "digits: completed" in cell.views[0]
    assert "did you mean digits?" in notebook.run("%elastic logs digit").error
    assert "there is no job 'nothing'" in notebook.run("%elastic attach nothing").error


def test_of_several_unfinished_jobs_none_is_cancelled_by_a_name(notebook: Notebook) -> None:
    first, second = (notebook.pool.submit("import time\ntime.sleep(600)", name="twin") for _ in range(2))
    cell = notebook.run("%elastic cancel twin")
    assert f"{first}, {second}" in cell.error
    assert {job.job for job in notebook.pool.active()} == {first, second}
    notebook.pool.cancel(first)
    notebook.pool.ended(first)
    assert not notebook.run("%elastic cancel twin").error
    assert notebook.pool.ended(second).outcome == "cancelled"


def test_help_and_near_misses(notebook: Notebook) -> None:
    for cell in (HEAD + "--help\nprint('not run')", "%%distribute --help"):
        cell_ = notebook.run(cell)
        assert not cell_.error
        assert " %%distribute [--gpus" in cell_.printed
        assert not cell_.shown
    assert "attach" in notebook.run("%elastic --help").printed
    assert "did you mean jobs?" in notebook.run("%elastic jbos").error
    assert "did you mean --gpus?" in notebook.run(HEAD + "--gpu2 5\nx = 1").error
    assert (
        "the pool has 2 CPU slots; ask for at most 2 (you asked for 99999999)"
        in notebook.run(HEAD + "--gpus 99999999\nx = 1").error
    )
    assert not notebook.run(HEAD + "--gpus 1:99999999\nx = 1").error


def test_variables_go_by_pattern_and_those_that_stay_are_named(notebook: Notebook) -> None:
    notebook.run("import os\nos.environ.update(LAB_A='1', LAB_B='2', KAGGLE_KEY='secret', WANDB_MODE='offline')")
    cell = notebook.run(HEAD + "--env 'LAB_*'\nimport os\nos.environ['LAB_A'] + os.environ['LAB_B']")
    assert cell.result == "'12'"
    cell = notebook.run(HEAD + "--dry-run\nimport os\nos.environ.get('LAB_A'), os.getenv('LAB_B')")
    assert "LAB_A, LAB_B, KAGGLE_KEY" in cell.printed
    assert "--env" in cell.printed
    assert "secret" not in cell.printed
    assert "WANDB_MODE" in next(line for line in cell.printed.splitlines() if line.startswith("environment:"))
    assert "no variable like NOTHING_*" in notebook.run(HEAD + "--env 'NOTHING_*'\n1").error


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
