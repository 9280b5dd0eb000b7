from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras_3 = pytest.importorskip("keras")

from jupyter_elastic import training
from jupyter_elastic.training.state import State, commits_of
from jupyter_elastic.types.errors import BadRequest, EngineError

rng = np.random.default_rng(2)
X = rng.normal(size=(50, 4))  # float64, as NumPy makes it
Y = (X @ rng.normal(size=(4, 3))).argmax(1)


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request):
    return pytest.importorskip(request.param)


def make(keras):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01)),
            keras.layers.Dense(3),
        ]
    )
    optimizer = keras.optimizers.Adam(0.05)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, optimizer, training.keras.train_step(model, optimizer, loss)


def trained(keras, micro_batch=None):
    model, optimizer, step = make(keras)
    losses = []

    @training.run
    def train(state):
        for state.epoch in state.epochs(2):  # noqa: B020
            losses.extend(float(step(x, y)) for x, y in training.batches((X, Y), 16, micro_batch=micro_batch))
        return model.get_weights()

    state = State(model=model, optimizer=optimizer)
    weights = train(state)
    assert state.step == 8
    assert commits_of(state).framework == "tensorflow"
    return weights, losses, step


def test_micro_batches_train_as_whole_ones_do(keras):
    weights, losses, step = trained(keras)
    assert losses[-1] < losses[0] / 1.5
    again, _, _ = trained(keras, micro_batch=3)
    for mine, theirs in zip(again, weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert step._gradients.experimental_get_tracing_count() == 1  # the small last batch costs no second tracing


def test_the_step_is_keras_own_step(keras):
    """The same weights as Keras' fit on the same batches."""
    weights, _, _ = trained(keras)
    model, _, _ = make(keras)
    model.compile(keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for epoch in range(2):
        order = training._data.order(50, seed=0, epoch=epoch)
        for start in range(0, 50, 16):
            chosen = order[start : start + 16]
            model.train_on_batch(X[chosen].astype("float32"), Y[chosen])
    for mine, theirs in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_models_and_optimizers_go_back_to_the_commit(keras):
    model, optimizer, step = make(keras)
    plain = tf.Variable([1.0, 2.0])
    state = State(model=model, optimizer=optimizer, plain=plain)
    training.run(lambda state: step(X, Y))(state)
    state.commit()
    before = (
        model.get_weights(),
        [v.numpy().copy() for v in training.keras._Variables(optimizer, is_model=False).variables()],
    )
    assert len(before[1]) > 8  # the moments are there from the beginning
    training.run(lambda state: step(X, Y))(state)
    plain.assign([5.0, 5.0])
    assert any((a != b).any() for a, b in zip(model.get_weights(), before[0], strict=True))
    state.restore()
    assert all((a == b).all() for a, b in zip(model.get_weights(), before[0], strict=True))
    after = [v.numpy() for v in training.keras._Variables(optimizer, is_model=False).variables()]
    assert all((a == b).all() for a, b in zip(after, before[1], strict=True))
    assert plain.numpy().tolist() == [1.0, 2.0]


def test_a_rollback_drops_gradients_of_an_unfinished_batch(keras):
    model, optimizer, step = make(keras)
    state = State(model=model, optimizer=optimizer)
    state.commit()
    step.reducer._kept = ["half"]
    state.restore()
    assert step.reducer._kept is None


def test_a_plain_loop_trains_as_the_train_step_does(keras):
    model, optimizer, _ = make(keras)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @training.run
    def train(state):
        for state.epoch in state.epochs(2):  # noqa: B020
            for x, y in training.batches((X, Y), 16, micro_batch=3):
                with tf.GradientTape() as tape:
                    loss = tf.add_n([loss_of(y, model(tf.cast(x, tf.float32), training=True)), *model.losses])
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return model.get_weights()

    state = State(model=model, optimizer=optimizer)
    found = train(state)
    assert state.step == 8
    for mine, theirs in zip(found, trained(keras)[0], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_outside_of_training_the_optimizer_is_what_it_was(keras):
    model, optimizer, _ = make(keras)
    State(model=model, optimizer=optimizer)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(X.astype("float32"), Y, epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]


def test_a_model_without_weights_is_refused(keras):
    with pytest.raises(BadRequest, match=r"no weights yet.*model\.build"):
        State(model=keras.Sequential([keras.layers.Dense(3)]))


def test_a_train_step_is_no_part_of_a_state(keras):
    with pytest.raises(BadRequest, match=r"outside of training\.State"):
        State(train_step=make(keras)[2])


def test_a_commit_of_another_model_is_refused(keras):
    state = State(model=make(keras)[0])
    other = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
    with pytest.raises(EngineError, match="4 in the commit"):
        commits_of(State(model=other)).decode(commits_of(state).encoded())


def test_a_step_outside_of_run_is_refused_in_a_job(memory, keras):
    with pytest.raises(EngineError, match=r"under @training\.run"):
        make(keras)[2](X, Y)


def test_streams_are_refused():
    with pytest.raises(BadRequest, match=r"tf\.data\.Dataset is a stream"):
        training.batches(tf.data.Dataset.range(5), 2)
