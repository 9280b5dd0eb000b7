"""Cells of the structure of Horovod's elastic examples: everything is made at top level, by `hvd.rank()` and `size()`.

Each trains until the test says stop, notes its steps, and takes an average over all ranks at its end.
"""

from __future__ import annotations

from tests.live.engine.bench import NOTE

LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
"""Horovod's Keras API needs the Keras that it was written for."""

SAMPLER = (
    NOTE
    + """
import torch, horovod.torch as hvd
from horovod.torch import rank as my_rank
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

hvd.init()
torch.manual_seed(42)
assert hvd.is_initialized() and my_rank() == hvd.rank() == rank and hvd.size() == world_size
assert hvd.global_process_set.size() == hvd.local_size() == world_size and hvd.global_process_set.included()
x = torch.randn(96, 8)
data = TensorDataset(x, (x.sum(1) > 0).long())
print("sampler", hvd.rank(), "of", hvd.size())
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(.1), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

@hvd.elastic.run
def train(state):
    while not state.stop:
        sampler.set_epoch(state.epoch)
        for batch, (x, y) in enumerate(loader):
            if batch < state.batch:
                continue
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            state.batch = batch + 1
            state.step += 1
            note(rank=hvd.rank(), size=hvd.size(), step=state.step)
            time.sleep(.01)
            state.commit()
        state.batch = 0
        state.epoch += 1
        state.stop = float(hvd.allreduce(torch.tensor(float(stopped())), name="stop")) > 0
    return state.step

def on_reset():
    for group in optimizer.param_groups:
        group["lr"] = .01 * hvd.size()
    make_loader()

def make_loader():
    global sampler, loader
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    state.batch = 0

state = hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0, step=0, stop=False)
state.register_reset_callbacks([on_reset])
steps = train(state)
mean = float(hvd.allreduce(torch.tensor(1.0), name="mean"))
weights = float(sum(p.double().sum() for p in model.parameters()))
"""
)

MADE_ONCE = SAMPLER.replace("    make_loader()\n", "", 1).replace(
    "step=state.step)", "step=state.step, part=[sampler.rank, sampler.num_replicas, len(loader)])"
)
"""As Horovod's own example: nobody makes the sampler anew, and the loop breaks nothing off."""

MET = SAMPLER.replace(
    "state = hvd.elastic", 'agreed = hvd.broadcast_object(rank, name="agreed")\nstate = hvd.elastic'
).replace("    make_loader()\n", '    make_loader()\n    agreed = hvd.broadcast_object(hvd.rank(), name="agreed")\n', 1)
"""With a collective before `elastic.run`, which the others meet in their callback."""

DECAY = SAMPLER.replace('        group["lr"] = .01 * hvd.size()', "        pass").replace(
    "        state.epoch += 1\n", "        state.epoch += 1\n        optimizer.param_groups[0]['lr'] *= .5\n"
)
"""The learning rate is part of the training, and Horovod does not broadcast that of an optimizer without a state."""

UNMET = SAMPLER.replace(
    "optimizer = hvd.Dist", "hvd.broadcast_parameters(model.state_dict(), root_rank=0)\noptimizer = hvd.Dist"
)
"""With one that nobody meets, as in Horovod's examples that are not elastic."""

FIT = (
    NOTE
    + """
import numpy as np, tensorflow as tf, horovod.tensorflow.keras as hvd
hvd.init()
assert (hvd.rank(), hvd.size()) == (rank, world_size)
tf.random.set_seed(1)
x = np.random.default_rng(hvd.rank()).normal(size=(64, 8)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, (x.sum(1) > 0).astype("int64"))).repeat().shuffle(64).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dropout(.1),
                             tf.keras.layers.Dense(2, activation="softmax")])
opt = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(.001 * hvd.size()))
model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])
model.fit(data, steps_per_epoch=1, epochs=1, verbose=0)           # so that there is something to synchronize
state = hvd.elastic.KerasState(model, batch=0, epoch=0, step=0, stop=False)

def on_reset():
    tf.keras.backend.set_value(state.model.optimizer.lr, .001 * hvd.size())
    state.model.fit(data, steps_per_epoch=1, epochs=1, verbose=0)  # meets the newcomers' first one

state.register_reset_callbacks([on_reset])

class Steps(tf.keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        state.step += 1
        note(rank=hvd.rank(), size=hvd.size(), step=state.step)
        time.sleep(.01)
    def on_epoch_end(self, epoch, logs=None):
        if float(hvd.allreduce(float(stopped()), name="stop")) > 0:
            state.stop = self.model.stop_training = True

callbacks = [Steps(), hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.UpdateBatchStateCallback(state),
             hvd.elastic.CommitStateCallback(state)]

@hvd.elastic.run
def train(state):
    if not state.stop:
        state.model.fit(data, steps_per_epoch=12 // hvd.size(), epochs=1000 - state.epoch, callbacks=callbacks,
                        verbose=0)
    return state.step

steps = train(state)
weights = float(sum(np.sum(w, dtype="float64") for w in model.get_weights()))
"""
)

TAPE = (
    NOTE
    + """
import numpy as np, tensorflow as tf, horovod.tensorflow as hvd

def main():
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, world_size)
    tf.random.set_seed(1)
    x = np.random.default_rng(hvd.rank()).normal(size=(64, 8)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, (x.sum(1) > 0).astype("int64"))).repeat().shuffle(64).batch(8)
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"),
                                 tf.keras.layers.Dense(2, activation="softmax")])
    loss = tf.keras.losses.SparseCategoricalCrossentropy()
    opt = tf.keras.optimizers.Adam(.001 * hvd.size())

    @tf.function
    def training_step(x, y, allreduce=True):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        if allreduce:
            tape = hvd.DistributedGradientTape(tape)
        opt.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
        return value

    for x, y in data.take(1):
        training_step(x, y, allreduce=False)

    @hvd.elastic.run
    def train(state):
        while not state.stop:
            for state.batch, (x, y) in enumerate(data.take(12 // hvd.size())):
                training_step(x, y)
                state.step += 1
                note(rank=hvd.rank(), size=hvd.size(), step=state.step)
                time.sleep(.01)
                state.commit()
            state.stop = float(hvd.allreduce(tf.constant(float(stopped())), name="stop")) > 0
        return state.step

    def on_reset():
        opt.lr.assign(.001 * hvd.size())

    state = hvd.elastic.TensorFlowKerasState(model, opt, batch=0, step=0, stop=False)
    state.register_reset_callbacks([on_reset])
    steps = train(state)
    return steps, float(sum(np.sum(w, dtype="float64") for w in model.get_weights()))

steps, weights = main()
"""
)
