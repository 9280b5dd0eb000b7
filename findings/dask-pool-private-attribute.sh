#!/usr/bin/env bash
# dask 2026.8.0: one of two ways to give it an executor reads a private attribute.
# Expected: any concurrent.futures.Executor works, by scheduler= and by pool= alike.
# Seen: scheduler=executor works with submit() alone; pool=executor raises AttributeError for _max_workers, which the
# abstract class does not have.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q dask==2026.8.0
cd "$folder"
env/bin/python - <<'PYTHON'
import concurrent.futures

import dask


class Plain(concurrent.futures.Executor):
    """What the abstract class asks for, and no more."""

    def __init__(self):
        self.threads = concurrent.futures.ThreadPoolExecutor(2)

    def submit(self, fn, /, *args, **kwargs):
        return self.threads.submit(fn, *args, **kwargs)


work = dask.delayed(sum)([1, 2])
assert work.compute(scheduler=Plain()) == 3
try:
    with dask.config.set(pool=Plain()):
        work.compute()
except AttributeError as problem:
    print(problem)
    assert "_max_workers" in str(problem)
else:
    raise SystemExit("it works now")
PYTHON
