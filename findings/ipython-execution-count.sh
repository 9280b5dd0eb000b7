#!/usr/bin/env bash
# IPython 9.8.0: a running cell sees the number of the next one.
# Expected: get_ipython().execution_count within cell 1 is 1, the number that its output gets.
# Seen: it is 2, for the count is raised before the cell runs; up to 9.7.0 it was 1. displayhook.prompt_count is 1 in both,
# so whoever labels an output by execution_count is one too high.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q ipython==9.8.0
cd "$folder"
env/bin/python - <<'PYTHON'
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_cell("seen = (get_ipython().execution_count, get_ipython().displayhook.prompt_count)", store_history=True)
print("execution_count, prompt_count within cell 1:", shell.user_ns["seen"])
assert shell.user_ns["seen"] == (2, 1)
PYTHON
