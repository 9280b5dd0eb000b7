#!/usr/bin/env bash
# Keras 3.15.1: fit(generator, epochs=2) trains the first batches again in an epoch for which nothing is left.
# Expected: a generator of five batches is used up by the first epoch; the second has none, and fit says so.
# Seen: fit looks at the first batches before it begins, and puts them in front again for each epoch: the second one trains
# those that were only looked at, counts as an epoch in the history, and differs from what the generator gave.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q "keras==3.15.1" "tensorflow-cpu==2.21.0"
cd "$folder"
env/bin/python - <<'PYTHON'
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import warnings

import keras
import numpy as np

warnings.simplefilter("ignore")
steps = []
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
batches = ((np.ones((2, 1)), np.ones((2, 1))) for _ in range(5))
history = model.fit(batches, epochs=2, verbose=0, callbacks=[count])
print("batches trained:", steps, "| epochs in the history:", len(history.history["loss"]))
assert len(steps) > 5
PYTHON
