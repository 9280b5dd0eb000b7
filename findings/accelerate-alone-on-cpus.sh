#!/usr/bin/env bash
# accelerate 1.15.0: under torchrun on CPUs an Accelerator() is alone, without a word.
# Expected: with the variables that torchrun sets (WORLD_SIZE=2 and so on) Accelerator() joins both processes, as on GPUs.
# Seen: where there is no GPU it is one process of one, its prepare() wraps nothing, and each process trains a model of its
# own; ACCELERATE_USE_CPU=true makes it join. Then prepare() raises for what has no parameters, such as a loss: on CPUs it
# wraps every module in DistributedDataParallel.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q "torch==2.13.0" "accelerate==1.15.0"
cd "$folder"
env/bin/python - <<'PYTHON'
import os
import subprocess
import sys

PROGRAM = """
import torch
from accelerate import Accelerator
accelerator = Accelerator()
model = accelerator.prepare(torch.nn.Linear(1, 1))
try:
    accelerator.prepare(torch.nn.MSELoss())
    loss = "fine"
except RuntimeError:
    loss = "refused"
print(accelerator.num_processes, type(model).__name__, loss)
"""


def two_processes(**more):
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **more}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "RANK": rank, "LOCAL_RANK": rank, **common},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for rank in ("0", "1")
    ]
    return {rank.communicate(timeout=120)[0].strip() for rank in ranks}


plain, told = two_processes(), two_processes(ACCELERATE_USE_CPU="true")
print("plain:", plain, "| ACCELERATE_USE_CPU=true:", told)
assert plain == {"1 Linear fine"}
assert told == {"2 DistributedDataParallel refused"}
PYTHON
