#!/usr/bin/env bash
# cloudpickle 3.1.3: a class whose base keeps its subclasses in a registry arrives as two classes.
# Expected: in the process that reads it the registry holds the class that arrives, as in the process that wrote it.
# Seen: the registry, a global of the base's __init_subclass__, is read within the class; the class is made, made again around
# that, and one of the two thrown away, after __init_subclass__ has put it into the registry.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q "cloudpickle==3.1.3"
cd "$folder"
env/bin/python - <<'PYTHON'
import subprocess
import sys

import cloudpickle

REGISTRY = {}


class Base:
    def __init_subclass__(cls):
        REGISTRY[cls.__name__] = cls


class Plugin(Base):
    pass


READ = "import pickle, sys; plugin, registry = pickle.load(sys.stdin.buffer); print(registry['Plugin'] is plugin)"
sent = cloudpickle.dumps((Plugin, REGISTRY))
there = subprocess.run([sys.executable, "-c", READ], input=sent, capture_output=True, check=True).stdout.decode().strip()
print("the registry holds the class: here", REGISTRY["Plugin"] is Plugin, "| where it was read", there)
assert REGISTRY["Plugin"] is Plugin
assert there == "False"
PYTHON
