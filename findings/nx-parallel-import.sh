#!/usr/bin/env bash
# networkx 3.6.1 with nx-parallel 0.3: the backend that networkx names can't be used with the networkx that pip installs.
# Expected: on Python 3.11 pip's newest pair works together; backend="parallel" runs.
# Seen: pip finds no conflict, and the first call raises ImportError for a private name that networkx has removed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q networkx==3.6.1 nx-parallel==0.3
cd "$folder"
env/bin/python - <<'PYTHON'
import networkx as nx

try:
    nx.pagerank(nx.path_graph(3), backend="parallel")
except ImportError as problem:
    print(problem)
else:
    raise SystemExit("it works now")
PYTHON
