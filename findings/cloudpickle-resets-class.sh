#!/usr/bin/env bash
# cloudpickle 3.1.3: reading an instance changes its class in the process that has written it.
# Expected: loading a copy of an object leaves what the program has set on its class meanwhile, as plain pickle does.
# Seen: a class that travels by value carries its attributes; where the class is known already, reading sets all of them
# again on the living class: counters, registries and methods that were replaced go back to what they were.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q cloudpickle==3.1.3
cd "$folder"
env/bin/python - <<'PYTHON'
import pickle

import cloudpickle


class Trial:
    made = 0


sent = cloudpickle.dumps(Trial())
Trial.made = 5
copy = pickle.loads(sent)
print("the same class:", type(copy) is Trial, "| Trial.made after reading:", Trial.made)
assert type(copy) is Trial
assert Trial.made == 0
PYTHON
