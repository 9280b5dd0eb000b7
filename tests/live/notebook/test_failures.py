"""What is seen of a failure: once, from the first failing rank, with the lines of the notebook and none of ours."""

from __future__ import annotations

from tests.live.notebook.conftest import Notebook

HEAD = "%%distribute --engine process "


def test_a_failure_is_shown_once_and_other_ranks_by_a_line(notebook: Notebook) -> None:
    cell = notebook.run(HEAD + "-n 2\ndef f():\n    raise ValueError('no luck')\nf()")
    assert cell.error.count("Traceback") == 1
    assert "\nrank 1: the same" in cell.error or "\nrank 0: the same" in cell.error
    assert "Traceback" not in cell.views[0]
    assert "ValueError: no luck" in cell.views[0]  # the reason, in a line
    assert "Traceback" not in cell.html.partition("rank 1</summary>")[0]
    cell = notebook.run(HEAD + "-n 2\nraise KeyError(rank)")
    assert cell.error.count("Traceback") == 1
    assert "\nrank 1: KeyError: 1" in cell.error or "\nrank 0: KeyError: 0" in cell.error


def test_a_failure_that_no_cell_waits_for_is_shown_in_the_view(notebook: Notebook) -> None:
    notebook.run(HEAD + "-a -o job\n1 / 0")
    (view,) = notebook.run("job.wait()").views
    assert view.count("Traceback") == 1
    assert view.count("\nZeroDivisionError: division by zero\n") == 1


def test_functions_of_earlier_cells_have_their_lines(notebook: Notebook) -> None:
    notebook.run("class Deep:\n    def fall(self):\n        return self.nothing / 0")
    notebook.run("def step(n):\n    # the line below\n    return Deep().fall() + n")
    cell = notebook.run(HEAD + "\nstep(1)")
    assert "in step\n    return Deep().fall() + n" in cell.error
    assert "in fall\n    return self.nothing / 0" in cell.error
    assert cell.error.count('File "<In[') == 3
    assert "ipykernel_" not in cell.error


def test_no_lines_of_ours(notebook: Notebook) -> None:
    cell = notebook.run(
        HEAD + "\nfrom jupyter_elastic import training\ntry:\n    {}['x']\nexcept KeyError:\n"
        "    list(training.batches([1, 2], batch_size=-1))"
    )
    assert "KeyError: 'x'" in cell.error
    assert "During handling of the above exception" in cell.error
    assert "training.batches([1, 2], batch_size=-1)" in cell.error
    assert "jupyter_elastic/" not in cell.error
    cell = notebook.run(HEAD + "-a -o job\n1")
    cell = notebook.run("job.wait()\njob.resize(2)")
    assert cell.ename == "BadRequest"
    assert "Traceback" not in cell.error
    assert "/" not in cell.error
    assert "Traceback" not in notebook.run("job.result(rank=7)").error
    assert "Traceback" not in notebook.run("job.logs(7)").error


def test_a_crash_in_compiled_code_shows_the_lines_that_led_to_it(notebook: Notebook) -> None:
    cell = notebook.run(
        HEAD + "-n 2\nimport ctypes\nif rank == 1:\n    ctypes.string_at(0)\nimport time\ntime.sleep(60)"
    )
    assert "SIGSEGV" in cell.error
    assert "Segmentation fault" in cell.error
    assert 'File "<In[' in cell.error
    assert "line 4 in <module>" in cell.error
    assert "jupyter_elastic/" not in cell.error


def test_a_keyboard_interrupt_that_the_cell_raises_has_its_line(notebook: Notebook) -> None:
    cell = notebook.run(HEAD + "\nx = 1\nraise KeyboardInterrupt")
    assert "line 3, in <module>\n    raise KeyboardInterrupt" in cell.error


def test_an_out_name_that_only_another_rank_has_is_said(notebook: Notebook) -> None:
    cell = notebook.run(
        HEAD + "-n 2 --out a,b,z\na = rank\nif rank == 1:\n    z = 'only here'\nif rank > 7:\n    b = 1"
    )
    assert not cell.error
    assert "--out z: rank 0 has not set it; this is rank 1's" in cell.printed
    assert "--out b: no rank has set it" in cell.printed
    assert notebook.run("print(a, z)").printed == "0 only here\n"
