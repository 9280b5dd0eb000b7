"""Cells that train, as a person would write them, and note each step in `FOLDER/steps`.

Every rank notes: rank 0 may be killed between a step that all have trained and its note of it.
"""

from __future__ import annotations

from tests.live.engine.bench import NOTE as BENCH_NOTE

NOTE = """
import json, os, time
import numpy as np
from jupyter_elastic import training
from jupyter_elastic.training.context import context

pieces, noted = [], [0]

def note(state, loss, count):
    pieces.append(float(loss) * count)
    if state.step == noted[0]:
        return                                             # a piece of a share: the optimizer has not stepped yet
    mean = training.total(sum(pieces)) / min(BATCH, 96 - (state.step - 1) % 4 * BATCH)     # of the whole global batch
    pieces.clear()
    noted[0] = state.step
    if not context.warming_up:                                # a newcomer's first step, alone, is no step of the job
        ring = {"rank": training.rank(), "size": training.size()}
        with open(f"{FOLDER}/steps", "a") as file:
            file.write(json.dumps({"step": state.step, "loss": mean, **ring, "at": time.time()}) + "\\n")
    if not os.path.exists(f"{FOLDER}/hurry"):
        time.sleep(0.05)

BATCH = 25                                                # 96 samples: a small last batch, and unequal shares
rng = np.random.default_rng(5)
x_all = rng.normal(size=(96, 8)).astype("float32")
y_all = (x_all @ rng.normal(size=(8, 3))).argmax(1)
"""

TORCH = (
    NOTE
    + """
import torch
torch.manual_seed(SEED + int(os.environ["RANK"]))       # every worker begins with other weights: rank 0's count
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
state = training.State(model=model, optimizer=optimizer, ended=[])

@training.run
def train(state):
    pieces.clear()
    noted[0] = state.step
    for state.epoch in state.epochs(EPOCHS):
        for x, y in training.batches((torch.from_numpy(x_all), torch.from_numpy(y_all)), BATCH, micro_batch=MICRO):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            training.report(loss=loss)
            note(state, loss.detach(), len(x))
            if state.step % 5 == 0:
                state.commit()
        state.ended = [*state.ended, state.epoch]
        state.commit()
    return [p.detach().numpy().tolist() for p in model.parameters()]

weights = train(state)
ended = state.ended
"""
)

KERAS = (
    NOTE
    + """
import keras
keras.utils.set_random_seed(SEED + int(os.environ["RANK"]))
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
train_step = training.keras.train_step(model, optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
state = training.State(model=model, optimizer=optimizer, ended=[])

@training.run
def train(state):
    pieces.clear()
    noted[0] = state.step
    for state.epoch in state.epochs(EPOCHS):
        for x, y in training.batches((x_all, y_all), BATCH, micro_batch=MICRO):
            loss = train_step(x, y)
            training.report(loss=loss)
            note(state, loss, len(x))
            if state.step % 5 == 0:
                state.commit()
        state.ended = [*state.ended, state.epoch]
        state.commit()
    return [v.tolist() for v in model.get_weights()]

weights = train(state)
ended = state.ended
"""
)

KERAS_TAPE = (
    KERAS.replace(
        "            loss = train_step(x, y)\n",
        """
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loss_of(y, model(x, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
""",
    )
    .replace("train_step = training.keras.train_step(model, optimizer, ", "loss_of = (")
    .replace("import keras\n", "import keras\nimport tensorflow as tf\n")
)
"""The loop as TensorFlow's own guide writes it: nothing in it says that others train too."""

FIT = (
    KERAS[: KERAS.index("@training.run")]
    + """
@training.run
def train(state):
    model.compile(optimizer, "mse")
    model.fit(x_all, x_all[:, :3])

train(state)
print("trained apart")
"""
)

LEGACY_KERAS = KERAS.replace("import keras\n", "import tf_keras as keras\n")

HVD_FIT = """
import numpy as np
import horovod.tensorflow.keras as hvd, keras
hvd.init()
keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
x = np.random.default_rng(hvd.rank()).normal(size=(64, 8)).astype("float32")
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=2, verbose=1),
]
history = model.fit(x, x[:, :3], epochs=2, verbose=0, callbacks=callbacks)
weights = [w.tolist() for w in model.get_weights()] + [history.history["loss"]]
rates = history.history["lr"]
"""

HVD_TAPE = """
import numpy as np, tensorflow as tf
import horovod.tensorflow as hvd, keras
hvd.init()
keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
mine = x[hvd.rank() :: hvd.size()]

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - x[:, :3]) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

step(mine)
hvd.broadcast_variables(model.variables, root_rank=0)
hvd.broadcast_variables(optimizer.variables, root_rank=0)
before = [w.copy() for w in model.get_weights()]
gradient = optimizer.variables[2].numpy()              # the momentum, of the first kernel
step(mine)
weights = [w.tolist() for w in model.get_weights()]
residual = x @ before[0] + before[1] - x[:, :3]        # the gradient of both parts together, by hand
expected = (before[0] + 0.9 * gradient - 0.1 * x.T @ residual * 2 / residual.size).tolist()
"""

HVD_STATE = (
    BENCH_NOTE
    + """
import numpy as np, tensorflow as tf
import horovod.tensorflow.keras as hvd, horovod.tensorflow.keras.elastic, keras
hvd.init()
keras.utils.set_random_seed(os.getpid())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), "mse")
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
state = hvd.elastic.KerasState(model, batch=0, epoch=0)

class Note(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        note(rank=hvd.rank(), size=hvd.size(), step=state.epoch)
        time.sleep(0.02)
        self.model.stop_training = stopped()

@hvd.elastic.run
def train(state):
    model.fit(
        x[hvd.rank() :: hvd.size()], x[hvd.rank() :: hvd.size(), :3], batch_size=8, verbose=0,
        epochs=100_000 - state.epoch,
        callbacks=[
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            Note(),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=3),
        ],
    )

train(state)
steps = state.epoch
weights = float(sum(w.astype("float64").sum() for w in model.get_weights()))
loss = float(np.mean((model.predict(x, verbose=0) - x[:, :3]) ** 2))
"""
)
