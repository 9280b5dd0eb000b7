#!/usr/bin/env bash
# duckdb 2.0.1: the number of its threads is that of the machine's cores, not of those that the process may use.
# Expected: bound to one core (as by taskset, a batch system or a container's cpuset) it takes one thread, as polars 2.1.0 does.
# Seen: it takes one for each core of the machine; its own setting (SET threads) says otherwise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q duckdb==2.0.1 polars==2.1.0
cd "$folder"
env/bin/python - <<'PYTHON'
import os

if os.cpu_count() == 1:
    raise SystemExit("this machine has one core: nothing can be seen here")
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import duckdb
import polars

threads = duckdb.sql("select current_setting('threads')").fetchall()[0][0]
print("may use 1 core; duckdb:", threads, "threads, polars:", polars.thread_pool_size())
assert polars.thread_pool_size() == 1
assert threads == os.cpu_count()
PYTHON
