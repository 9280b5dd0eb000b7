"""Implements `jupyter elastic doctor`: checks all that a job needs on this machine and gives advice on each.

Each check is a small function that returns a `Finding`, which is printed as soon as it is known. Frameworks are
imported in fresh interpreters, never here.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import platform
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal as human
from rich.table import Table
from rich.text import Text

from jupyter_elastic.cli import host_commands
from jupyter_elastic.cli.admin_commands import drained
from jupyter_elastic.cli.commands import print_json
from jupyter_elastic.client import Client, services
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.driver.engine import Engine, Finding, completed
from jupyter_elastic.forkserver import parents
from jupyter_elastic.jobfiles import captures
from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.kernel import submission
from jupyter_elastic.platform import endpoints, entry_points, paths
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import ElasticError, EngineError


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_python() -> Finding:
    """Report this interpreter; an unsupported one could not have installed the package."""
    return Finding("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def check_jupyter() -> Finding:
    """Check that the server and a front end are installed."""
    parts = {name: _version(name) for name in ("jupyter_server", "jupyterlab", "ipykernel", "ipywidgets", "anywidget")}
    found = ", ".join(f"{name} {version}" for name, version in parts.items() if version)
    absent = [name for name, version in parts.items() if version is None]
    if absent:
        return Finding("Jupyter", "warning", found, f"pip install {' '.join(absent)} for the live view")
    return Finding("Jupyter", "ok", found)


def check_extension() -> Finding:
    """Check that the server extension is switched on by its configuration file."""
    name = "jupyter_elastic.json"
    folders = [Path(sys.prefix, "etc/jupyter/jupyter_server_config.d"), Path("/etc/jupyter/jupyter_server_config.d")]
    where = next((folder / name for folder in folders if (folder / name).exists()), None)
    if where is None:
        advice = "pip install --force-reinstall --no-deps jupyter-elastic, then restart the Jupyter server"
        return Finding("server extension", "warning", "not switched on", advice)
    return Finding("server extension", "ok", str(where))


def check_daemon() -> Finding:
    """Check that the pool's daemon answers, or would be started."""
    try:
        choice = endpoints.choose()
        if not choice.endpoint and endpoints.living_daemon() is None:
            found = f"not running; it is started by the first job; the pool is {paths.state_dir()} ({choice.why})"
            return Finding("daemon", "ok", found)
        endpoint = services.ensure(start=False)
        with Client() as client:
            welcome = expect(client.ask(wire.Hello(version=wire.VERSION)), wire.Welcome)
            drains = expect(client.ask(wire.ListHosts()), wire.Hosts).drains
    except ElasticError as problem:
        return Finding("daemon", "error", str(problem), "the message says what to do")
    found = (
        f"answers at {endpoint} ({choice.why}), version {welcome.package}, policy {welcome.policy}, you are "
        f"{welcome.user}; your jobs are in {paths.state_dir()}"
    )
    if welcome.package != importlib.metadata.version("jupyter-elastic"):
        advice = "the daemon is of another version than this package: restart it when its jobs are over"
        return Finding("daemon", "warning", found, advice)
    if drains:
        advice = "jobs wait until an administrator ends that: `jupyter elastic pool maintenance off`, `host undrain`"
        return Finding("daemon", "warning", "; ".join((found, *map(drained, drains))), advice)
    return Finding("daemon", "ok", found)


def check_gpus() -> Finding:
    """Report this machine's GPUs."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        names = {str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))) for index in range(count)}
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as problem:
        return Finding("GPUs", "ok", f"none (NVML: {problem}); slots are CPU cores")
    return Finding("GPUs", "ok", f"{count} x {', '.join(sorted(names))}")


def check_keras() -> Finding:
    """Report the Keras that a cell gets, and the interfaces of Horovod that work with it."""
    keras, legacy = _version("keras"), _version("tf-keras")
    if keras is None and legacy is None:
        return Finding("Keras", "ok", "not installed")
    found = ", ".join(
        f"{name} {version}" for name, version in (("Keras", keras), ("legacy tf-keras", legacy)) if version
    )
    advice = ""
    if keras and int(keras.split(".", 1)[0]) >= 3:
        advice = (
            "model.fit on several workers: training.keras.distributed(optimizer), or hvd.DistributedOptimizer (a plain "
            "fit is refused there); a loop of your own: training.keras.train_step, or hvd.DistributedGradientTape"
        )
    return Finding("Keras", "ok", found, advice)


def check_engines() -> Finding:
    """Report the engines that a job can name."""
    found: list[str] = []
    lacking: list[str] = []
    for name, entries in sorted(entry_points.installed(entry_points.ENGINES).items()):
        try:
            reason = entry_points.load(entries).missing()
        except EngineError as problem:
            reason = str(problem)
        (lacking if reason else found).append(f"{name}: {reason}" if reason else name)
    if not found:
        return Finding("engines", "error", "; ".join(lacking) or "none", "reinstall the package")
    return Finding("engines", "ok", ", ".join(found) + ("; not: " + "; ".join(lacking) if lacking else ""))


def check_default_engines() -> Finding:
    """Report the engines of cells that name none, and how to change them."""
    kinds = {
        "training": "from jupyter_elastic import training",
        "torch.distributed": "import torch.distributed",
        "TensorFlow": "import tensorflow",
        "other cells": "",
    }
    given: dict[str, list[str]] = {}
    for kind, source in kinds.items():
        cell = Payload(source=source, filename="", first_line=1, names=b"")
        given.setdefault(submission.default_engine(cell).engine, []).append(kind)
    found = "; ".join(f"{name} for {', '.join(cells)}" for name, cells in given.items())
    lacking = [engine.missing() for engine in _engines() if engine.missing()]
    return Finding("default engines", "ok", found, "; ".join(lacking) or "another by --engine")


def check_hostname() -> Finding:
    """Check that other hosts can resolve this one's own name; Horovod needs that."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return Finding("host name", "error", f"{name} does not resolve", f"add it to /etc/hosts: 127.0.1.1 {name}")
    advice = "fine for one machine; with several, the name must resolve to the address that the others reach"
    return Finding("host name", "ok", f"{name} is {address}", advice if address.startswith("127.") else "")


def check_captures() -> Finding:
    """Report the disk space of captured names."""
    jobs = paths.jobs_dir()
    count, size = captures.on_disk(jobs)
    found = (
        f"{human(size)} of {count} jobs in {jobs}; they go a day after their job's end, or beyond "
        f"{human(captures.MAX_BYTES)} "
        "sooner (output and results stay)"
    )
    if size > 2 * captures.MAX_BYTES:
        advice = "jobs that are not over hold most of it, or no agent runs: any cell starts one"
        return Finding("captures", "warning", found, advice)
    return Finding("captures", "ok", found)


def check_warm_parents() -> Finding:
    """Report the parents that are kept warm for this user in this pool."""
    kept = parents.found(paths.runtime_dir(), kinds=(parents.WORKERS,))
    size = human(sum(parent.memory for parent in kept))
    limit = f"at most {parents.most()} and {human(parents.max_memory())}, or what the pool allows"
    return Finding("warm parents", "ok", f"{len(kept)} take {size}; {limit}" if parents.wanted() else "not wanted")


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python, check_jupyter, check_extension, check_daemon, check_engines, check_default_engines, check_gpus,
    check_keras, check_hostname, check_captures, check_warm_parents,
)  # fmt: skip


def _engines() -> list[type[Engine]]:
    """Return the installed engines; `check_engines` reports those that can't be loaded."""
    found = []
    for entries in entry_points.installed(entry_points.ENGINES).values():
        with contextlib.suppress(EngineError):
            found.append(completed(entry_points.load(entries)))
    return found


def examine(show: Callable[[Finding], object], *, hosts: bool = False) -> list[Finding]:
    """Run every check, and those of the engines, at once; `show` each finding as it is known. Return them in order."""
    with ThreadPoolExecutor(32) as threads:
        checks = [threads.submit(_finding, check) for check in CHECKS]
        checks += [threads.submit(_finding, engine.examine) for engine in _engines()]
        for check in as_completed(checks):
            if (finding := check.result()) is not None:
                show(finding)
    found = [finding for check in checks if (finding := check.result()) is not None]
    for finding in host_commands.examine() if hosts else []:
        show(finding)
        found.append(finding)
    return found


def _finding(check: Callable[[], Finding | None]) -> Finding | None:
    """Return the check's finding. A check that breaks is itself a finding."""
    try:
        return check()
    except Exception as problem:
        name = check.__name__.removeprefix("check_")
        text = f"the check itself failed: {type(problem).__name__}: {problem}"
        return Finding(name, "error", text, "please report this")


def main(argv: Sequence[str] | None = None) -> int:
    """Check this installation and say what to do. Exit code 1 when something is an error."""
    parser = argparse.ArgumentParser(prog="jupyter elastic doctor", description="Check all that a job needs here.")
    parser.add_argument("--json", action="store_true", help="a list of {check, status, found, advice}")
    parser.add_argument("--hosts", action="store_true", help="visit the other hosts of your own pool too")
    options = parser.parse_args(argv)
    console = Console(highlight=False)
    waiting = console.status("importing the frameworks: some seconds") if console.is_terminal else nullcontext()
    with nullcontext() if options.json else waiting:
        show = (lambda _: None) if options.json else functools.partial(_show, console)
        findings = examine(show, hosts=options.hosts)
    if options.json:
        print_json(findings)
    return int(any(finding.status == "error" for finding in findings))


def _show(console: Console, finding: Finding) -> None:
    colour = {"ok": "green", "warning": "yellow", "error": "red"}[finding.status]
    row = Table.grid(padding=(0, 1))
    row.add_column(width=len("warning"), style=colour)
    row.add_column(overflow="fold")
    text = f"{finding.check}: {finding.found}" + (f"\n→ {finding.advice}" if finding.advice else "")
    row.add_row(finding.status, Text(text))
    console.print(row)
