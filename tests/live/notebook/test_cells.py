"""%%distribute and %elastic in a real kernel against a real pool."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.types import StopRequested
from tests.live.notebook.conftest import Notebook
from tests.support.pool import Pool

HEAD = "%%distribute --engine process "


def test_a_cell_runs_on_two_workers_and_gives_its_values_back(notebook: Notebook) -> None:
    notebook.run("x = 20\ndef double(n):\n    return n * two\ntwo = 2")
    cell = notebook.run(
        HEAD + "--gpus 2 --out total,who -o job\ntotal = double(x) + 2\nwho = rank\nprint('rank', rank)"
    )
    assert not cell.error
    assert "double (function" in cell.printed
    assert "two (int" in cell.printed
    (view,) = cell.views
    assert view.splitlines()[0].endswith("completed in " + view.splitlines()[0].split(" in ")[1])
    assert "[rank 1]" in view
    assert "rank 1" in cell.html
    assert notebook.run("print(total, who, sorted(job.results), job.result(rank=1))").printed == (
        "42 0 [0, 1] {'total': 42, 'who': 1}\n"
    )
    assert notebook.run("print(job.status, job.logs(1), job.ranks, job.error, job.wait(1))").printed == (
        "completed rank 1\n [0, 1] None completed\n"
    )


def test_the_first_failing_rank_comes_first_with_the_cells_own_line(notebook: Notebook) -> None:
    cell = notebook.run(
        HEAD + "--gpus 2 -o bad\nif rank == 1:\n    raise ValueError('no <b>luck</b>')\nimport time\ntime.sleep(60)"
    )
    assert cell.ename == "JobFailed"
    assert cell.error.startswith("Traceback")
    assert "line 3" in cell.error
    assert "ValueError: no <b>luck</b>" in cell.error
    assert "That was rank 1" in cell.error
    assert "magic.py" not in cell.error
    assert "<b>luck" not in cell.html
    assert notebook.run("bad.result()").ename == "JobFailed"
    assert "free" in notebook.run("%elastic host slots").views[0]


def test_interrupting_cancels_the_job_and_says_that_its_slots_are_free(notebook: Notebook) -> None:
    request = notebook.start(HEAD + "--gpus 2\nimport time\nprint('up', flush=True)\ntime.sleep(600)")
    notebook.finish(request, until=lambda cell: any("running" in view for view in cell.views))
    notebook.interrupt()
    cell = notebook.finish(request)
    assert cell.ename == "JobCancelled"
    assert "is cancelled; its 2 CPU slots are free again" in cell.error
    assert notebook.run("%elastic job list").views[0].startswith("no unfinished jobs")


def test_detach_returns_the_handle_at_once(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(f"go = {str(tmp_path / 'go')!r}")
    cell = notebook.run(
        HEAD + "-a -o later --name 'long <i>one</i>' --out y\nimport os, time\n"
        "while not os.path.exists(go):\n    time.sleep(0.02)\ny = 7"
    )
    assert not cell.result  # the handle has a name; what it says now would soon be out of date
    assert (
        notebook.run("print(later.status in ('queued', 'starting', 'running'), later.progress)").printed
        == "True None\n"
    )
    assert notebook.run("print(later.explain())").printed
    assert notebook.run("later.wait(0.01)").ename == "TimeoutError"
    cell = notebook.run(
        "open(go, 'w').close()\nlater.wait()\nprint(later.result(), [p.slots for p in later.size_history()])"
    )
    assert cell.printed == "7 [1, 0]\n"
    assert "completed in" in cell.views[0]  # said by the cell that waited: nbclient heeds no other
    assert notebook.run("later").result == f"<Job {notebook.run('later.id').result} 'long <i>one</i>': completed>"
    cell = notebook.run(HEAD + "-a\nprint(rank)")
    assert "<Job " in cell.result, cell.error
    assert notebook.run("_.wait()").result == "'completed'"


LOGICAL = """
import torch
from jupyter_elastic import training
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
state = training.State(model=model, optimizer=optimizer)
@training.run
def train(state):
    for state.epoch in state.epochs(2):
        for x, in training.batches((torch.linspace(-1, 1, 512).reshape(64, 8),), 16):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        state.commit()
    return training.size()
size = train(state)
weights = [p.detach().numpy().tobytes() for p in model.parameters()]
"""


def test_logical_workers_by_the_option_and_refused_when_the_job_may_outgrow_them(notebook: Notebook) -> None:
    pytest.importorskip("torch")
    for size in (1, 2):
        head = f"%%distribute --engine torch --logical 4 --gpus {size} --out size,weights"
        assert not notebook.run(f"{head}\n{LOGICAL}").error
        assert not notebook.run(f"kept{size} = weights, size").error
    assert notebook.run("print(kept1[0] == kept2[0], kept1[1], kept2[1])").printed == "True 1 2\n"
    source = LOGICAL.replace("optimizer=optimizer)", "optimizer=optimizer, logical_workers=4)")
    error = notebook.run(f"%%distribute --engine torch --gpus 1:8\n{source}").error
    assert "logical_workers=4 can't be shared out by the 8 processes that this job may have" in error
    assert "--gpus 1:4" in error


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (HEAD + "--gpus 0\n1", "needs at least 1 slot"),
        (HEAD + "--gpus 3:1\n1", "the first number is the least"),
        (HEAD + "--gpus 5\nx = 1", "the pool has 2 CPU slots"),
        (HEAD + "--gpu2 5\nx = 1", "--gpu2"),
        ("%%distribute --engine mpi\nx = 1", "installed are horovod, process"),
        (HEAD + "\n   \n# nothing", "the cell is empty"),
        (HEAD + "\nx = (", "syntax error in <In["),
        (HEAD + "\n%timeit x", "line 2: `%timeit` is an IPython magic"),
        (HEAD + "--out missing\nx = 1", "the cell never sets `missing`"),
        (HEAD + "--in nothere\nx = 1", "the notebook has no `nothere`"),
        ("import threading; lock = threading.Lock()\nget_ipython().run_cell_magic('distribute', '', 'lock')", "`lock`"),
        ("%elastic job cancel 999", "no job 999"),
        ("%elastic job logs 999", "no job 999"),
        ("%elastic frobnicate", "invalid choice"),
        ("%elastic policy use nosuch", "nosuch"),
        ("%elastic policy use fifo --opt nonsense", "write NAME=VALUE"),
        ("%%policy 3x\npass", "write %%policy NAME"),
        ("%%policy mine --shadow --activate\npass", "contradict"),
        ("%%policy mine --frobnicate\npass", "unrecognized arguments: --frobnicate"),
        ("%%policy mine\nx = 1", "define plan(view)"),
        ("%%policy mine\ndef plan(view):\n    return {99: 1}", "there is no unfinished job 99"),
        ("%%policy mine\ndef plan(view):\n    return 1 / 0", "ZeroDivisionError"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(notebook: Notebook, code: str, message: str) -> None:
    cell = notebook.run(code)
    assert message in cell.error
    assert "jupyter_elastic/" not in cell.error
    assert not notebook.pool.active()


def test_a_job_that_is_refused_leaves_no_view(notebook: Notebook) -> None:
    views, folders = len(notebook.job_widgets), len(list(notebook.pool.jobs_dir.iterdir()))
    cell = notebook.run(HEAD + "--gpus 5\nx = 1", widgets=True)
    assert "the pool has 2 CPU slots" in cell.error
    assert not cell.shown
    assert len(notebook.job_widgets) == views
    assert len(list(notebook.pool.jobs_dir.iterdir())) == folders


def test_an_interrupt_before_the_daemon_has_answered_says_so(notebook: Notebook) -> None:
    assert not notebook.run(HEAD + "\nprint('the connection stands')", widgets=True).error
    folders, daemon = set(notebook.pool.jobs_dir.iterdir()), notebook.pool.daemon
    assert daemon is not None
    daemon.send_signal(signal.SIGSTOP)
    try:
        request = notebook.start(HEAD + "\nprint('after all')", widgets=True)
        notebook.pool.until(lambda: set(notebook.pool.jobs_dir.iterdir()) - folders, "the job's folder")
        notebook.interrupt()
        cell = notebook.finish(request)
    finally:
        daemon.send_signal(signal.SIGCONT)
    assert cell.ename == "JobCancelled"
    assert "see %elastic job list" in cell.error
    assert not cell.shown
    notebook.pool.mend()


def test_a_dry_run_shows_and_queues_nothing(notebook: Notebook) -> None:
    before = len(notebook.pool.client.jobs(all=True))
    cell = notebook.run("data = list(range(1000))\n%load_ext jupyter_elastic")
    cell = notebook.run("%%distribute --gpus 1:2 --dry-run --out n --engine process\nn = len(data)")
    assert "data (list" in cell.printed
    assert "dry run: engine process, 1 to 2 slot(s), back comes n; nothing was queued" in cell.printed
    cell = notebook.run("%%distribute --sizes 1,2 --no-preempt --deadline 2h --dry-run --engine process\nprint(1)")
    assert "process, 1 or 2 slot(s), not to be paused, back comes nothing" in cell.printed
    assert "to be done by 20" in cell.printed
    assert len(notebook.pool.client.jobs(all=True)) == before


def test_sizes_deadline_and_no_preemption_reach_the_books(notebook: Notebook) -> None:
    notebook.run("%load_ext jupyter_elastic")
    notebook.run("%%distribute --sizes 2 --no-preempt --deadline 2h --engine process -o limited --detach\nprint(1)")
    spec = notebook.pool.client.jobs(all=True)[-1].spec
    assert (spec.sizes, spec.preemptible, spec.min_slots) == ((2,), False, 2)
    assert 7000 < spec.deadline_at - time.time() <= 7200
    notebook.pool.ended(notebook.pool.client.jobs(all=True)[-1].job)


OLDEST_LAST = """
def plan(view):
    free, sizes = view.capacity, {}
    for job in reversed(view.jobs):
        if job.phase != "stopping" and job.min_slots <= free:
            sizes[job.job] = job.min_slots
            free -= job.min_slots
    return sizes
"""


def test_a_policy_from_a_cell_is_a_shadow_first_and_decides_when_it_is_let(notebook: Notebook) -> None:
    pool = notebook.pool
    first = pool.submit("import time\ntime.sleep(600)", slots=2, name="<b>first</b>")
    pool.running(first)
    second = pool.submit("import time\ntime.sleep(600)", slots=1, name="second")
    cell = notebook.run("%%policy newest_first\n" + OLDEST_LAST)
    assert "2 of 2 jobs would hold other slots under newest_first" in cell.result
    assert f"job {second} second" in cell.result
    assert pool.info(first).phase == "running"
    cell = notebook.run("%%policy newest_first --activate\n" + OLDEST_LAST)
    assert "policy newest_first decides from now on" in cell.printed
    pool.running(second)
    assert pool.info(first).phase in {"stopping", "queued"}
    notebook.run("%elastic policy use fifo")
    for job in (first, second):
        pool.cancel(job)
        pool.ended(job)


def test_the_line_magic_shows_the_pool(notebook: Notebook) -> None:
    assert "2 CPU slots (no GPUs here): 2 free" in notebook.run("%elastic").views[0]
    assert "First come, first served" in notebook.run("%elastic policy list").views[0]
    assert '"kind": "cpu"' in notebook.run("%elastic host slots --json").printed


def test_above_the_live_pool_stands_what_keeps_it_from_taking_jobs(notebook: Notebook) -> None:
    with notebook.pool.closed_journal():
        request = notebook.start("%elastic", widgets=True)
        assert "can't be written" in notebook.finish(request).printed
    assert "attention" not in notebook.finish(notebook.start("%elastic", widgets=True)).printed


def test_a_host_is_added_and_taken_out_by_the_words_of_the_command_line(notebook: Notebook) -> None:
    assert "b: 1 slots" in notebook.run("%elastic host add b exec: --slots 1").views[0]
    assert "exec:" in notebook.run("%elastic host list").views[0]
    assert "ssh://-oProxyCommand=x" in notebook.run("%elastic host add lab2 ssh://-oProxyCommand=x").error
    assert "no host of the pool" in notebook.run("%elastic host remove b").views[0]


def test_the_live_widget_follows_a_busy_kernel_and_its_button_cancels(notebook: Notebook) -> None:
    request = notebook.start(
        HEAD + "-n 2 -a\nimport time\nfor i in range(6000):\n    print(i, flush=True)\n    time.sleep(0.1)",
        widgets=True,
    )
    cell = notebook.finish(request)
    assert any("application/vnd.jupyter.widget-view+json" in bundle for bundle in cell.shown.values())
    assert not any(phase in cell.result for phase in ("queued", "starting", "running"))  # which the page would keep
    assert " object at " not in "".join(cell.views)
    busy = notebook.start("import time\nfor _ in range(30): time.sleep(0.1)", widgets=True)
    seen: set[str] = set()

    def moved() -> bool:
        lines = notebook.widget.get("outputs", {}).get("1", [])
        seen.update(text for _, text in lines[-1:])
        return len(seen) >= 3

    notebook.listen(moved)  # while the kernel sleeps in the other cell
    notebook.finish(busy)
    assert notebook.widget["screen"]["state"] == "running on 2 CPU slots"
    notebook.click(type="cancel")
    notebook.listen(lambda: notebook.widget["screen"]["phase"] == "cancelled")
    assert "free again" in notebook.widget["screen"]["state"]


def test_the_kept_view_of_a_detached_job_is_renewed_while_the_kernel_is_busy(
    notebook: Notebook, tmp_path: Path
) -> None:
    notebook.run(
        f"go = {str(tmp_path / 'go')!r}\nimport os, time\n"
        "from jupyter_elastic.widgets import job_display\njob_display.KEPT_S = 0.2"
    )
    wait = "while not os.path.exists(go): time.sleep(0.05)"
    notebook.run(HEAD + f"-n 2 -a\nimport os, time\nprint('begun', flush=True)\n{wait}", widgets=True)
    busy = notebook.start(wait, widgets=True)
    cell = notebook.finish(
        busy,
        until=lambda cell: any("begun" in view and "running on 2 CPU slots, as of " in view for view in cell.views),
    )
    assert re.search(r"running on 2 CPU slots, as of \d\d:\d\d, ", cell.html)
    (tmp_path / "go").touch()
    cell = notebook.finish(busy, until=lambda cell: any("completed" in view for view in cell.views))
    assert "as of" not in cell.html  # an end stays true
    notebook.run("job_display.KEPT_S = 60.0")


def test_a_view_that_nobody_sees_is_not_sent_what_is_printed(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(
        f"go = {str(tmp_path / 'go')!r}\nimport os, time\n"
        "from jupyter_elastic.widgets import job_display\njob_display.ASLEEP_S = 3600.0"
    )
    wait = "n = 0\nwhile not os.path.exists(go):\n    print('line', n := n + 1, flush=True)\n    time.sleep(0.1)"
    notebook.run(HEAD + f"--detach\nimport os, time\n{wait}", widgets=True)
    notebook.listen(lambda: len(notebook.widget.get("outputs", {}).get("0", [])) > 2)
    notebook.click(type="sleep")
    asleep = "import gc\nfrom jupyter_elastic.widgets.job_widget import JobWidget\n"
    asleep += "any(one.asleep for one in gc.get_objects() if type(one) is JobWidget)"
    notebook.pool.until(lambda: notebook.run(asleep, widgets=True).result == "True", "the view has heard it")
    (info,) = notebook.pool.active()

    def printed() -> int:
        return len(notebook.pool.output(info.job).splitlines())

    at = printed()
    notebook.pool.until(lambda: printed() > at + 20, "it prints on")
    busy = "import time\nfor _ in range(10): time.sleep(0.1)"
    notebook.finish(notebook.start(busy, widgets=True))  # takes in whatever was sent meanwhile
    assert int(notebook.widget["outputs"]["0"][-1][1].split()[1]) < at + 20
    notebook.click(type="wake")
    notebook.listen(lambda: int(notebook.widget["outputs"]["0"][-1][1].split()[1]) > at + 20)
    notebook.run("job_display.ASLEEP_S = 10.0")
    (tmp_path / "go").touch()
    notebook.pool.ended(info.job)


def test_a_job_is_sent_to_the_background(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(f"go = {str(tmp_path / 'go')!r}")
    request = notebook.start(
        HEAD + "-o job --out v\nimport os, time\nwhile not os.path.exists(go): time.sleep(0.05)\nv = 3"
    )
    notebook.finish(request, until=lambda cell: any("running" in view for view in cell.views))
    (info,) = notebook.pool.active()
    (Path(info.spec.folder) / "background").touch()
    cell = notebook.finish(request)
    assert "<Job" in cell.result
    (tmp_path / "go").touch()
    assert notebook.run("print(job.result())").printed == "3\n"


def test_a_job_outlives_its_kernel(notebook: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    notebook.run(f"go = {str(go)!r}")
    cell = notebook.run(
        HEAD + "--detach --name survivor --out v\nimport os, time\nwhile not os.path.exists(go):\n"
        "    time.sleep(0.05)\nprint('went')\nv = 'alive'"
    )
    number = int(cell.result.split()[1])
    notebook.restart()
    assert "survivor" in notebook.run("%elastic job list").views[0]
    go.touch()
    cell = notebook.run(f"job = get_ipython().run_line_magic('elastic', 'attach {number}')\nprint(job.result())")
    assert "alive" in cell.printed
    assert "survivor" in "".join(cell.views)
    assert notebook.run(f"%elastic job logs {number}").printed == "went\n"


def test_an_ended_job_is_attached_to_and_the_next_one_is_live(notebook: Notebook) -> None:
    over = notebook.pool.submit("print('long ago')")
    notebook.pool.ended(over)
    assert "completed" in "".join(notebook.run(f"%elastic job attach {over}").views)
    cell = notebook.run(HEAD + "--out v\nprint('now')\nv = 1")
    assert any("now" in view for view in cell.views)  # beside what the view above says late
    assert notebook.run("print(v)").printed == "1\n"


def test_out_values_survive_elsewhere_than_rank_0(notebook: Notebook) -> None:
    cell = notebook.run(HEAD + "-n 2 --out a -o job\nif rank == 1:\n    a = 'only here'")
    assert not cell.error
    printed: Any = notebook.run("print(job.results, job.result())").printed
    assert "only here" in printed


def test_options_are_completed(notebook: Notebook) -> None:
    def completed(text: str) -> list[str]:
        request = notebook.client.complete(text)
        while (reply := notebook.client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != request:
            pass
        return list(reply["content"]["matches"])

    assert any("--gpus" in match for match in completed("%%distribute --g"))
    assert completed("%elastic jo") == ["job"]
    assert completed("%elastic job exp") == ["explain"]
    assert {"describe", "list", "use"} <= set(completed("%elastic policy "))


@pytest.mark.parametrize("restart", [False, True])
def test_ending_or_restarting_the_kernel_ends_no_job_that_its_cell_waits_for(shared_pool: Pool, restart) -> None:
    kernel = Notebook(shared_pool)
    try:
        kernel.load()
        before = {info.job for info in shared_pool.active()}
        kernel.start("%%distribute --gpus 1 --engine process\nimport time\nprint('begun', flush=True)\ntime.sleep(600)")
        shared_pool.wait(lambda: {info.job for info in shared_pool.active()} - before, "the job is queued")
        (job,) = {info.job for info in shared_pool.active()} - before
        shared_pool.printed(job, "begun")
        if restart:
            kernel.manager.restart_kernel()
        else:
            kernel.manager.shutdown_kernel()
        assert shared_pool.info(job).phase == "running"
        assert not [fact for fact in shared_pool.events_of(job) if isinstance(fact, StopRequested)]
    finally:
        kernel.close()
        shared_pool.mend()
