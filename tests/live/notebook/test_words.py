"""Jobs by name, help, near misses, variables of the environment, sessions: what a person types."""

from __future__ import annotations

from pathlib import Path

from tests.live.notebook.conftest import Notebook

HEAD = "%%distribute --engine process "


def test_a_job_is_found_by_its_name(notebook: Notebook) -> None:
    for number in range(2):
        assert not notebook.run(HEAD + f"--name digits -o job{number}\nprint('run', {number})").error
    cell = notebook.run("%elastic job logs digits")
    assert "run 1\n" in cell.printed
    assert "2 jobs are called digits" in cell.printed
    said = notebook.run("%elastic job explain digits").printed + str(notebook.run("%elastic job list -a").views)
    assert "completed" in said
    cell = notebook.run("%elastic job attach digits")
    assert "digits: completed" in cell.views[0]
    assert "did you mean digits?" in notebook.run("%elastic job logs digit").error
    assert "there is no job 'nothing'" in notebook.run("%elastic job attach nothing").error


def test_of_several_unfinished_jobs_none_is_cancelled_by_a_name(notebook: Notebook) -> None:
    first, second = (notebook.pool.submit("import time\ntime.sleep(600)", name="twin") for _ in range(2))
    cell = notebook.run("%elastic job cancel twin")
    assert f"{first}, {second}" in cell.error
    assert {job.job for job in notebook.pool.active()} == {first, second}
    notebook.pool.cancel(first)
    notebook.pool.ended(first)
    assert not notebook.run("%elastic job cancel twin").error
    assert notebook.pool.ended(second).outcome == "cancelled"


def test_help_and_near_misses(notebook: Notebook) -> None:
    for cell in (HEAD + "--help\nprint('not run')", "%%distribute --help"):
        cell_ = notebook.run(cell)
        assert not cell_.error
        assert "usage: %%distribute [--gpus" in cell_.printed
        assert "Every day:" in cell_.printed
        assert not cell_.shown
    assert "explain" in notebook.run("%elastic --help").printed
    assert "attach" in notebook.run("%elastic job").printed
    assert "did you mean job list?" in notebook.run("%elastic jbos").error
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
    cell = notebook.run("%%distribute --session work --hold 10m\ndata")
    assert "the session's own data" in cell.printed
    assert cell.result == "'the session'"
    assert "has 2 workers, not 1" in notebook.run("%%distribute --session work --gpus 1\n1").error
    sessions = notebook.run("%elastic session list")
    assert "<table " in sessions.html  # which breaks its lines where the page ends
    listed = str(sessions.views)
    assert "work" in listed
    assert "2 slots kept for" in listed
    assert "with 2 workers" in str(vars(notebook.run("%elastic session end work")))
    assert "there is no session 'work'" in notebook.run("%elastic session end work").error
    assert "NameError" in notebook.run("%%distribute --session work --engine process\nx.append(1)\nprint(y)").error


def test_words_of_sessions(notebook: Notebook) -> None:
    assert "there is no session 'word'" in notebook.run("%elastic session pull word x").error
    assert "there is no session 'word'" in notebook.run("%elastic session auto word").error
    cell = notebook.run("%%distribute --session word --engine process --gpus 2\nxylo = rank")
    assert not cell.error, cell.error
    assert (
        "--rank 2: the session 'word' has the ranks 0 to 1"
        in notebook.run("%%distribute --session word --rank 2\n1").error
    )
    assert notebook.run("%%distribute --session word --rank 1\nxylo += 10\nonly = 1").error == ""
    pulled = notebook.run("%elastic session pull word xylo")
    assert pulled.result == "{0: 0, 1: 11}", pulled.error
    assert notebook.run("%elastic session pull word xylo only --rank 1").result == "{'xylo': {1: 11}, 'only': {1: 1}}"
    error = notebook.run("%elastic session pull word xyl").error
    assert "no rank of the session 'word' has 'xyl'; did you mean xylo?" in error
    assert not notebook.run("yard = [1]\n%elastic session push word yard --rank 0").error
    assert notebook.run("%%distribute --session word\nxylo, 'yard' in globals()").result == "(0, True)"
    notebook.run("%config Completer.use_jedi = False")
    for text, expected in {
        "%%distribute --session word\nxyl": "xylo",
        "%elastic session pull word xy": "xylo",
        "%elastic session push word yar": "yard",
        "%%distribute --session wo": "word",
    }.items():
        reply = notebook.client.complete(text, reply=True, timeout=60)
        assert expected in [match.split()[-1] for match in reply["content"]["matches"]], (text, reply["content"])


def test_all_cells_of_a_notebook_run_in_a_session_until_that_is_off(notebook: Notebook) -> None:
    assert not notebook.run("%%distribute --session all --engine process --gpus 2\nimport os\npid = os.getpid()").error
    assert "all cells run in the session all now" in notebook.run("%elastic session auto all").printed
    assert notebook.run("pid == os.getpid(), rank").result == "(True, 0)"
    failed = notebook.run("xeno = 1\n1 / 0")
    assert "ZeroDivisionError" in failed.error
    assert "line 2" in failed.error
    notebook.finish(notebook.client.execute("mine = 1", store_history=False))  # of the page, not of a person
    assert "1 loop each" in notebook.run("%timeit -n 1 -r 1 pass").printed
    assert not notebook.run("%elastic session auto --off").error
    assert notebook.run("mine, 'xeno' in globals()").result == "(1, False)"


def test_detached_cells_of_a_session_run_in_their_order_and_the_first_one_need_not_have_begun(
    notebook: Notebook, tmp_path: Path
) -> None:
    other = notebook.pool.submit("import time\ntime.sleep(600)")  # of two slots one is taken
    first = notebook.run("%%distribute --session line --detach --engine process --gpus 2\nx = [rank]")
    assert not first.error, first.error
    gate = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'gate')!r}): time.sleep(0.01)"
    assert not notebook.run(f"%%distribute --session line --detach\n{gate}\nx.append('second')").error
    waits = notebook.start("%%distribute --session line\nx")
    notebook.pool.cancel(other)
    notebook.pool.until(lambda: len(notebook.pool.active()) == 2, "the first is over")
    (tmp_path / "gate").touch()
    assert notebook.finish(waits).result == "[0, 'second']"


def test_a_session_loads_edited_modules_again_where_the_notebook_does_and_says_that_nobody_can_be_asked(
    notebook: Notebook, tmp_path: Path
) -> None:
    module = tmp_path / "edited.py"
    module.write_text("def value():\n    return 1\n")
    session = "%%distribute --session edits --engine process\n"
    cell = notebook.run(session + "%load_ext autoreload\n%autoreload 2\nprint('ran')")
    assert "%autoreload is left out, in a cell of the notebook's own it holds for sessions too" in cell.printed
    notebook.run(f"%load_ext autoreload\n%autoreload 2\nimport sys; sys.path.insert(0, {str(tmp_path)!r})")
    assert notebook.run(session + "import edited\nfrom edited import value\nvalue()").result == "1"
    module.write_text("def value():\n    return 'edited'\n")
    assert notebook.run(session + "value(), edited.value()").result == "('edited', 'edited')"
    notebook.run("%autoreload 0")
    module.write_text("def value():\n    return 'once more'\n")
    assert notebook.run(session + "value()").result == "'edited'"
    assert "call input() in a cell of the notebook's own" in notebook.run(session + "input('who?')").error
