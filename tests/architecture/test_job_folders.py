"""Nobody opens a file of a job's folder but by `jobfiles/job_folder.py`: another user may have put anything there.

Each line that opens, lists, makes or looks at files by a path, in the parts that show, read or mark jobs, stands here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "jupyter_elastic"
WHERE = ("cli", "client", "hub", "kernel", "server_ext", "views", "widgets")
READERS = ("displays", "failure", "call_files", "results", "usage", "usage_history")
"""Those of `jobfiles/` that read what may be another user's."""
OPENS = re.compile(
    r"(?<![\w.])(?:open|FileIO|Path\.open)\(|\bos\.(?:open|stat|listdir|scandir|mkfifo|mkdir|link|symlink|replace|rename)\("
    r"|\.(?:open|read_bytes|read_text|write_bytes|write_text|touch|mkdir|glob|rglob|iterdir|exists|is_file|is_dir|stat"
    r"|lstat|unlink|rename|replace_with|symlink_to|hardlink_to)\(|\b(?:read_json|write_json|write_private|open_private)\("
)
BY_THE_FOLDER = re.compile(r"(?:files|_files|_folder|_job|folder)\.open\(|JobFolder\(.*\)\.open\(")
"""What has a `JobFolder`."""
ALLOWED = {
    # settings, records and programs of this user or of the pool
    "cli/doctor.py": ["where = next((folder / name for folder in folders"],
    "cli/host_commands.py": ["write_private(file, msgspec"],
    "cli/main.py": ["os.open(os.devnull"],
    "cli/run_command.py": ["tokenize.open(path)"],
    "cli/stop_command.py": ['runtime / "daemon.json"', 'runtime / "agent.json"', "runtime.glob("],
    "client/functions/worker_settings.py": ["os.stat(file).st_mtime_ns"],
    "client/registration.py": ["read_json(path, Registered)", "write_json(path, made)", "_opener.open(request"],
    "client/services.py": ["read_json(paths.agent_file()"],
    "kernel/shipping.py": ["folder.is_dir()", "folder.exists()"],
    "kernel/submission.py": [
        "os.scandir(folder) as entries", "_installed(folder, folder.stat()", "folder.glob(", "is_file():",
        "module.rglob(", "path.read_text(",
    ],
    # files of this package
    "widgets/bundle.py": ['_built(STATIC / "elastic.css")', "path.is_file()"],
    "views/static_display.py": ["Path(__file__)"],
    "widgets/job_widget.py": ['bundle.script("job_loader")', 'bundle.script("job")'],
    "views/timeline_page.py": ["Path(__file__)"],
    # the sockets' and streams' own word
    "client/client.py": ["self._subscriptions.open("],
    # written, or read by its writer alone: the driver, a worker, or who submits into a folder that he has just made
    "jobfiles/failure.py": ["write_json(folder / NAME"],
    "jobfiles/usage_history.py": ["write_json(folder / NAME"],
    "jobfiles/call_files.py": [
        "write_private(folder / SLOT_LIMIT", "(folder / SLOT_LIMIT).read_bytes()", "open_private(folder / CALLS",
        "(self._folder / CLOSED).exists()", "write_private(self._folder / CLOSED", "returned.mkdir(",
        "open_private(returned / name", "self._folder.stat().st_mtime_ns",
    ],
}  # fmt: skip


def opened(text: str) -> list[str]:
    """The lines of a module that open, list or make files by a path."""
    lines = (line.split("  #")[0].strip() for line in text.splitlines())
    found = [line for line in lines if OPENS.search(line) and not line.startswith(("def ", "async def "))]
    return [line for line in found if not BY_THE_FOLDER.search(line)]


def modules() -> list[str]:
    files = [path for folder in WHERE for path in (PACKAGE / folder).rglob("*.py") if "node_modules" not in path.parts]
    files += [PACKAGE / "jobfiles" / f"{name}.py" for name in READERS]
    return sorted(str(path.relative_to(PACKAGE)) for path in files)


@pytest.mark.parametrize("module", modules())
def test_files_of_jobs_are_opened_in_one_place(module: str) -> None:
    lines = opened((PACKAGE / module).read_text())
    left = [line for line in lines if not any(part in line for part in ALLOWED.get(module, ()))]
    assert left == [], "read it by a JobFolder; if it is no file of a job, name it in ALLOWED"


def test_no_line_is_allowed_that_is_not_there() -> None:
    for module, parts in ALLOWED.items():
        lines = opened((PACKAGE / module).read_text())
        assert [part for part in parts if not any(part in line for line in lines)] == [], module


@pytest.mark.parametrize(
    "line",
    [
        'text = (job.folder / "rank.0" / "stdout").read_text()',
        "with open(info.spec.folder + '/cell.py') as file:",
        'path = job.folder.glob("rank.*")',
        "(followed.files.path / BACKGROUND).touch()",
        "handle = os.open(folder / BEGUN, os.O_RDWR | os.O_CREAT)",
        'found = private_files.read_json(folder / "error.json", Failure)',
        "if (job.folder / BACKGROUND).exists():",
    ],
)
def test_another_way_is_found(line: str) -> None:
    assert opened(line) == [line]
