"""Cells that train under TensorFlow's `ParameterServerStrategy`."""

from __future__ import annotations

from tests.live.engine.bench import NOTE

CLUSTER = (
    NOTE
    + """
import tensorflow as tf
from jupyter_elastic import training
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
shape = [len(cluster["worker"]), len(cluster["ps"])]
strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
"""
)

COUNTED = (
    CLUSTER
    + """
STEPS, FEATURES = 20, ROWS
with strategy.scope():
    weights = tf.Variable(tf.zeros((FEATURES, 4)))
    momentum = tf.Variable(tf.zeros((FEATURES, 4)))
    applied = tf.Variable(0, dtype=tf.int64)
    epoch = tf.Variable(0, dtype=tf.int64)
    tickets = training.parameter_servers.Tickets(STEPS)
checkpoint = tf.train.Checkpoint(weights=weights, momentum=momentum, applied=applied, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, os.path.join(FOLDER, "checkpoints"), max_to_keep=2)
checkpoint.restore(manager.latest_checkpoint)
begun = int(epoch)
note(event="restored", epoch=begun, applied=int(applied), shape=shape, sum=float(tf.reduce_sum(weights)))

@tf.function
def step(number):
    def train():
        ids = tf.random.stateless_uniform((64,), (1, number), 0, FEATURES, tf.int32)
        target = tf.cast(ids % 4, tf.float32)[:, None]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.nn.embedding_lookup(weights, ids) - target) ** 2)
        gradient = tf.convert_to_tensor(tape.gradient(loss, weights))
        momentum.assign(0.9 * momentum + gradient)
        weights.assign_sub(0.1 * momentum)
        applied.assign_add(1)
        return loss
    return tickets.once(number, lambda: strategy.run(train))

while int(epoch) < EPOCHS and not stopped():
    tickets.clear()
    for number in range(STEPS):
        result = coordinator.schedule(step, args=(tf.constant(number),))
        if number == 0 and int(epoch) == begun:
            coordinator.join()
            note(event="first step", shape=shape)
    coordinator.join()
    epoch.assign_add(1)
    note(event="epoch", epoch=int(epoch), applied=int(applied), shape=shape, sum=float(tf.reduce_sum(weights)))
    manager.save()
    training.report(epoch=int(epoch), loss=float(result.fetch()))
    training.boundary()
total, epochs = int(applied), int(epoch)
"""
)

HELD = '''
class Held(tf.train.experimental.PythonState):
    """A part of the checkpoint that is not written before the file `may_write` names its epoch or a later one."""
    def serialize(self):
        note(event="writes", epoch=int(epoch), shape=shape)
        while int(open(os.path.join(FOLDER, "may_write")).read() or 0) < int(epoch):
            time.sleep(0.005)
        return ""
    def deserialize(self, text):
        pass
'''
SLOW_CHECKPOINT = COUNTED.replace("checkpoint = tf", HELD + "checkpoint = tf").replace(
    "epoch=epoch)", "epoch=epoch, held=Held())", 1
)
"""Stays in the middle of a checkpoint until it may go on."""

DIGITS = (
    CLUSTER
    + """
import keras, numpy as np
from sklearn.datasets import load_digits
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
x_train, y_train, x_test, y_test = x[:1400], y[:1400], x[1400:], y[1400:]
BATCH = 32
STEPS = len(x_train) // BATCH
images, labels = tf.constant(x_train), tf.constant(y_train)
keras.utils.set_random_seed(SEED)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.SGD(0.2)
    optimizer.build(model.trainable_variables)
    epoch = tf.Variable(0, dtype=tf.int64)
    tickets = training.parameter_servers.Tickets(STEPS)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, os.path.join(FOLDER, "checkpoints"), max_to_keep=2)
checkpoint.restore(manager.latest_checkpoint)

@tf.function
def step(number, indices):
    def train():
        x, y = tf.gather(images, indices), tf.gather(labels, indices)
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss
    return tickets.once(number, lambda: strategy.run(train))

while int(epoch) < EPOCHS:
    order = np.random.default_rng((SEED, int(epoch))).permutation(len(x_train))[: STEPS * BATCH].reshape(STEPS, BATCH)
    tickets.clear()
    for number in range(STEPS):
        coordinator.schedule(step, args=(tf.constant(number), tf.constant(order[number])))
    coordinator.join()
    epoch.assign_add(1)
    note(event="epoch", epoch=int(epoch), shape=shape)
    manager.save()
    training.boundary()
accuracy = float(np.mean(np.argmax(model(x_test), 1) == y_test))
"""
)

STATE = (
    CLUSTER
    + """
import numpy as np
with strategy.scope():
    weights = tf.Variable(tf.zeros((4,)))
state = training.State(kept=np.zeros(4, "float32"), done=0)

@tf.function
def step():
    strategy.run(lambda: weights.assign_add(tf.ones((4,))))

@training.run
def train(state):
    weights.assign(state.kept)
    while state.done < EPOCHS and not stopped():
        for _ in range(20):
            coordinator.schedule(step)
        coordinator.join()
        state.kept, state.done = weights.numpy(), state.done + 1
        note(event="epoch", epoch=state.done, applied=float(state.kept[0]), sum=float(state.kept.sum()), shape=shape)
        state.commit()

train(state)
total, epochs = int(weights.numpy()[0]), state.done
"""
)

FILLED = (
    CLUSTER
    + """
import numpy as np
halves = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
splitting = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver(), halves)
ROWS, sent, values, held = 2 * 1024**2, {}, {}, {}
mixed = np.zeros(ROWS, "float32")
mixed[-1] = 1

def bytes_sent():
    (line,) = [line for line in open("/proc/self/net/dev") if line.lstrip().startswith("lo:")]
    return int(line.split(":")[1].split()[8])

for name, given, where in (
    ("zeros", tf.zeros(ROWS), strategy),
    ("ones", tf.ones(ROWS), strategy),
    ("of NumPy", np.full(ROWS, 3), strategy),
    ("split", tf.fill((ROWS,), 0.5), splitting),
    ("other values", tf.constant(mixed), strategy),
):
    before = bytes_sent()
    with where.scope():
        variable = tf.Variable(given)
    sent[name] = bytes_sent() - before
    found = tf.convert_to_tensor(variable)
    values[name] = float(found[0]), float(found[-1]), found.dtype.name
    parts = getattr(variable, "variables", [variable])
    held[name] = [int(part.device.split("/task:")[1].split("/")[0]) for part in parts]
"""
)

LEGACY_FIT = (
    CLUSTER
    + """
import tf_keras
with strategy.scope():
    model = tf_keras.Sequential([tf_keras.layers.Input((8,)), tf_keras.layers.Dense(64), tf_keras.layers.Dense(1)])
    model.compile(tf_keras.optimizers.SGD(0.01), "mse", steps_per_execution=5)
    epoch = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(model=model, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, os.path.join(FOLDER, "checkpoints"), max_to_keep=2)
checkpoint.restore(manager.latest_checkpoint)
data = tf.data.Dataset.from_tensor_slices((tf.random.normal((64, 8)), tf.zeros((64, 1)))).repeat().batch(8)
while int(epoch) < EPOCHS and not stopped():
    model.fit(data, epochs=1, steps_per_epoch=10, verbose=0)
    epoch.assign_add(1)
    note(event="epoch", epoch=int(epoch), shape=shape)
    manager.save()
    training.report(epoch=int(epoch))
    training.boundary()
epochs, first = int(epoch), model.layers[0].kernel
parts = len(getattr(first, "variables", [first])) + len(getattr(model.layers[0].bias, "variables", [0]))
"""
)
SPLIT_FIT = LEGACY_FIT.replace(
    "TFConfigClusterResolver())\ncoordinator",
    "TFConfigClusterResolver(),\n"
    "    variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2))\ncoordinator",
)

TUTORIAL = (
    CLUSTER
    + """
note(event="started", shape=shape)
x, y = tf.random.uniform((10, 10)), tf.random.uniform((10,))
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).repeat().batch(64).prefetch(2)
with strategy.scope():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(10)])
    model.compile(tf.keras.optimizers.legacy.SGD(), loss="mse", steps_per_execution=10)

class Epochs(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        note(event="epoch", epoch=epoch, shape=shape)
        self.model.stop_training = stopped()

callbacks = [tf.keras.callbacks.BackupAndRestore(backup_dir=os.path.join(FOLDER, "backup")), Epochs()]
if BOUNDARY:
    callbacks.insert(0, tf.keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: training.boundary()))
model.fit(dataset, epochs=EPOCHS, steps_per_epoch=20, callbacks=callbacks, verbose=0)
"""
)
"""As on TensorFlow's pages, with tf-keras."""

MODEL_STATE = (
    CLUSTER
    + """
import keras
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
state = training.State(model=model, done=0)

@tf.function
def step():
    strategy.run(lambda: model.trainable_variables[1].assign_add([1.0]))

@training.run
def train(state):
    note(event="restored", epoch=state.done, applied=float(model.trainable_variables[1].numpy()[0]), shape=shape)
    while state.done < EPOCHS and not stopped():
        for _ in range(20):
            coordinator.schedule(step)
        coordinator.join()
        state.done += 1
        note(event="epoch", epoch=state.done, applied=float(model.trainable_variables[1].numpy()[0]), shape=shape)
        state.commit()

train(state)
"""
)
