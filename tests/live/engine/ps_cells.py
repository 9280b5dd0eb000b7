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
