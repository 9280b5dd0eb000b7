"""Follows the beginning of docs/hosts.md, by SSH, as somebody who has nothing but it; run in namespaces by a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.test_stranger import execute
from tests.support.machines import HOME, SOURCE, Machines, address

PAGE = (SOURCE / "docs" / "hosts.md").read_text()
CELL = """{magic} --with . --out places
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


def commands() -> list[str]:
    """Those of the page's beginning."""
    return [line.strip() for line in PAGE.partition("\n## ")[0].splitlines() if line.startswith("    ")]


def said(command: str) -> str:
    """What a shell's line prints, which must succeed."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=400)
    sys.stdout.write(f"$ {command}\n{done.stdout}{done.stderr}")
    assert done.returncode == 0
    return done.stdout


def inline(words: str) -> str:
    """A command that the page has within a sentence."""
    assert f"`{words}`" in PAGE, words
    return f"jupyter elastic {words}"


def main() -> None:
    machines = Machines(1)
    (machines.keys / "config").write_text(f"Host lab2\n  HostName {address(1)}\n")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ["JUPYTER_ELASTIC_SLOTS"] = "1"
    folder = HOME / "lab"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "words.txt").write_text("first words")
    (folder / "lab_tools.py").write_text("ANSWER = 42\n")
    os.chdir(folder)
    log_in, add, show, doctor = commands()
    said(log_in)
    slots = int(re.search(r"lab2: (\d+) slots", said(add))[1])
    assert "ssh://lab2" in said(show)
    assert "all 2 are open" in " ".join(said(doctor).split())
    magic = "%%distribute --gpus 1:8"
    assert f"`{magic}`" in PAGE
    cells = [
        "%load_ext jupyter_elastic",
        CELL.format(magic=f"{magic} --engine torch -o job"),
        "print(sorted(found['places'] for found in job.results.values()))",
    ]
    code, words, texts = execute(folder, *cells)
    sys.stdout.write("".join(texts))
    assert code == 0, words
    places = eval(texts[-1])
    assert [place[0] for place in places].count("h1") == slots
    assert len({place[1] for place in places}) == 2  # the folder itself, and over there the job's copy
    assert len({place[2] for place in places}) == 1
    assert "42 first words" in "".join(texts)
    said(inline("host drain lab2"))
    said("jupyter elastic host undrain lab2")
    said(inline("host remove lab2"))
    assert "lab2" not in said(show)
    said("jupyter elastic stop --force")


if __name__ == "__main__":
    main()
