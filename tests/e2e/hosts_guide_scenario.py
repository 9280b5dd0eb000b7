"""Follows a section of docs/hosts.md as somebody who has nothing but it: `WAY`; run in namespaces by a test.

The section's own commands are run by a shell, in their order. After each one that adds hosts a cell runs on them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.e2e.test_stranger import execute
from tests.support import kubectl, slurm
from tests.support.machines import HOME, SOURCE, Machines, address

PAGE = (SOURCE / "docs" / "hosts.md").read_text()
CELL = """{magic} --engine torch --with . --out places -o job
import os, socket
import torch
import lab_tools
from jupyter_elastic import training
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = training.State(model=model, optimizer=optimizer)
@training.run
def train(state):
    for state.epoch in state.epochs(3):
        for x, in training.batches((torch.ones(32, 2),), 4):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            state.commit()
train(state)
print(lab_tools.ANSWER, open("data/words.txt").read())
places = [socket.gethostname(), os.getcwd(), float(model.weight.detach().sum())]
"""
MAGIC = "%%distribute --gpus 1:8"
CLUSTER = f"{address(0)}:6379"
GIVEN_BACK_S = 60.0


class Way(NamedTuple):
    """A way to other hosts."""

    heading: str
    """Of its section; empty: the page's beginning."""
    prepare: Callable[[], object]
    """Makes what the section begins with."""
    own: dict[str, str]
    """What is the reader's own, by what the page has in its place."""
    cells: tuple[tuple[str, int], ...]
    """How a cell begins, after each command that adds hosts, and on how many others it then is."""
    last: str = ""
    """A command of the page's sentences, with which it ends."""
    machines: bool = True
    """They are others than this one."""


class Bare(Machines):
    """Machines with nothing on them."""

    def _server(self, number: int) -> str:
        return "true"


def by_ssh() -> None:
    machines = Machines(1)
    (machines.keys / "config").write_text(f"Host lab2\n  HostName {address(1)}\n")


def by_ray() -> None:
    """A cluster whose head is this machine, as who asks for `ray start` finds it, and a node with a CPU.

    Ray looks for its node on a machine by the processes, and all machines here see each other's; it takes a head first.
    """
    from tests.live.engine.ray_scenario import Cluster

    Cluster(Bare(1), 1)
    (HOME / "bin").mkdir()
    (ray := HOME / "bin" / "ray").write_text(
        f'#!/bin/sh\ntest "$*" = "start --address={CLUSTER} --num-cpus=0 --num-gpus=0"\n'
    )
    ray.chmod(0o755)
    os.environ["PATH"] = f"{HOME / 'bin'}:{os.environ['PATH']}"


def by_kubectl() -> None:
    Bare(1)
    (HOME / "bin").mkdir()
    kubectl.install(HOME / "bin")
    os.environ |= {"PATH": f"{HOME / 'bin'}:{os.environ['PATH']}", "PODS": "gpu-0"}


WAYS = {
    "ssh": Way("", by_ssh, {}, ((MAGIC, 1),), "host remove lab2"),
    "slurm": Way(
        "Slurm",
        lambda: slurm.Cluster(2),
        {"--partition=gpu": "--partition=all", "--gres=gpu:4 --exclusive": "--exclusive"},
        ((MAGIC, 2), ("%%distribute --gpus 3", 1)),
    ),
    "ray": Way(
        "Ray",
        by_ray,
        {"10.0.0.1:6379": CLUSTER, '{"GPU": 4}': '{"CPU": 1}'},
        ((MAGIC, 1), ("%%distribute --gpus 2", 1)),
    ),
    "kubectl": Way("Kubernetes", by_kubectl, {}, ((MAGIC, 1),), machines=False),
    "exec": Way("Without another machine", lambda: Bare(1), {}, ((MAGIC, 1), (MAGIC, 2)), machines=False),
}


def commands(heading: str) -> list[str]:
    """Those of a section of the page."""
    section = PAGE.partition(f"\n## {heading}\n")[2] if heading else PAGE
    assert section, heading
    return [line.strip() for line in section.partition("\n## ")[0].splitlines() if line.startswith("    ")]


def said(line: str) -> str:
    """What a shell's line prints, which must succeed."""
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, timeout=400)
    sys.stdout.write(f"$ {line}\n{done.stdout}{done.stderr}")
    assert done.returncode == 0
    return done.stdout + done.stderr


def inline(words: str) -> str:
    """What a command prints that the page has within a sentence."""
    assert f"`{words}`" in PAGE, words
    return said(f"jupyter elastic {words}")


def cell(folder: Path, magic: str, hosts: int, *, machines: bool) -> None:
    """Train over this machine and so many other hosts, each with the folder that travels."""
    cells = [
        "%load_ext jupyter_elastic",
        CELL.format(magic=magic),
        "print(sorted(found['places'] for found in job.results.values()))",
    ]
    code, words, texts = execute(folder, *cells)
    sys.stdout.write("".join(texts))
    assert code == 0, words
    places = eval(texts[-1])
    assert len({place[0] for place in places}) == 1 + machines * hosts
    assert len({place[1] for place in places}) == 1 + hosts  # the folder itself, and over there the job's copy
    assert len({place[2] for place in places}) == 1
    assert "42 first words" in "".join(texts)


@contextlib.contextmanager
def lab() -> Iterator[Path]:
    """A notebook's folder."""
    folder = HOME / "lab"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "words.txt").write_text("first words")
    (folder / "lab_tools.py").write_text("ANSWER = 42\n")
    os.chdir(folder)
    try:
        yield folder
    finally:
        said("jupyter elastic pool stop --force")


def follow(way: Way, folder: Path) -> None:
    """The section's commands, and a cell whenever hosts were added."""
    waiting = list(way.cells)
    for line in commands(way.heading):
        for text, own in way.own.items():
            line = line.replace(text, own)  # noqa: PLW2901
        text = " ".join(said(line).split())
        if number := re.search(r"Granted job allocation (\d+)", text):
            way.own["4711"] = number[1]
        if line.startswith("jupyter elastic host add") and waiting:
            cell(folder, *waiting.pop(0), machines=way.machines)
            if way.heading == "Ray" and waiting:
                inline("host remove cluster")
        if "doctor --hosts" in line:
            assert "all 2 are open" in text
    assert not waiting
    if way.last:
        inline(way.last)
    limit = time.monotonic() + GIVEN_BACK_S
    while len(json.loads(said("jupyter elastic host list --json"))) > 1:
        assert time.monotonic() < limit
        time.sleep(1)


def main() -> None:
    [name] = sys.argv[1:]
    way = WAYS[name]
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    way.prepare()
    os.environ |= {"JUPYTER_ELASTIC_SLOTS": "1", "JUPYTER_ELASTIC_DIR": str(HOME / "pool")}
    assert f"`{MAGIC}`" in PAGE
    with lab() as folder:
        follow(way, folder)


if __name__ == "__main__":
    main()
