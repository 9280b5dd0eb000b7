"""Implements `jupyter elastic run FILE`: runs a script as a job, followed in the terminal as torchrun's is.

Packages like `%%distribute`, but captures no names. Knows the client, the cell's options and a job's files.
"""

from __future__ import annotations

import os
import sys
import tokenize
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from jupyter_elastic.client import Client, services
from jupyter_elastic.client.job import Job, Tail, check_size
from jupyter_elastic.kernel import capture, submission
from jupyter_elastic.kernel.cell_options import CellOptions
from jupyter_elastic.kernel.options import script_line
from jupyter_elastic.kernel.shipping import with_folder
from jupyter_elastic.types.errors import BadRequest, JobCancelled, JobFailed
from jupyter_elastic.views.updater import updater

TAIL_S = 0.1
INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Run a script on slots of the pool, and show what it prints; the exit code. An ElasticError says what is wrong."""
    file, arguments, options = script_line(argv, os.environ)
    package = _package(file, arguments, options)
    choice = submission.choose_engine(package.payload, options)
    for line in submission.report(package, options, choice):
        print(line, file=sys.stdout if options.dry_run else sys.stderr)
    if options.dry_run:
        return 0
    services.ensure()
    with Client() as client:
        check_size(client, options.min_slots)
        job = submission.submit(client, options, package, choice, Path(file).name[:200])
        if options.detach:
            print(f"job {job.id} is queued; its output: jupyter elastic job logs {job.id} --follow", file=sys.stderr)
            print(job.id)
            return 0
        print(f"job {job.id} is queued; Ctrl-C cancels it", file=sys.stderr)
        try:
            _follow(job)
        except KeyboardInterrupt:
            print(f"\n{submission.interrupted(job, where='in a terminal')}", file=sys.stderr)
            return INTERRUPTED
        return _end(job)


def _package(file: str, arguments: Sequence[str], options: CellOptions) -> capture.Package:
    """Package the script with its name and lines, and its folder to import from, as Python would start it."""
    path = Path(file).absolute()
    try:
        with tokenize.open(path) as script:
            source = script.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as problem:
        raise BadRequest(f"{file} can't be read: {problem}") from None
    package = capture.package(source, {}, filename=str(path), capture=(), env=options.env, seed=options.seed)
    folders = (str(path.resolve().parent), *package.payload.sys_path)
    package = replace(package, payload=replace(package.payload, argv=(file, *arguments), sys_path=folders))
    return with_folder(package, options.folder)


def _follow(job: Job) -> None:
    """Copy rank 0's output until the job is over."""
    _, end = updater().show_job(job, lambda *_: None)
    tails = [(Tail(job.files, "rank.0", name), getattr(sys, name)) for name in ("stdout", "stderr")]
    while True:
        ended = end.wait(TAIL_S)
        for tail, stream in tails:
            tail.copy(stream)
        if ended:
            return


def _end(job: Job) -> int:
    """Print the job's end, unless rank 0 has just printed the same failure; return the exit code."""
    try:
        job.check()
    except JobFailed as problem:
        failure = job.error
        shown = failure is not None and failure.rank == 0 and failure.traceback in job.logs(0, "stderr")
        files = f"job {job.id} ({job.name}) failed; the ranks' full output is in {job.folder}/rank.*/"
        print(files if shown and failure and failure.traceback else problem, file=sys.stderr)
        return 1
    except JobCancelled as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0
