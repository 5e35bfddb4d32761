"""`gc.pack_activations` in models: training, structure, state, saving, and what it refuses."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from packed_layers import Encoder, built, equal, error, numbers, step

import gradcomp as gc

L = keras.layers
LOSSLESS = gc.Identity()


class Drops(L.Layer):
    """A draw and statistics: what stock recomputation gets wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = L.BatchNormalization(), L.Dropout(0.5, seed=1)

    def call(self, x: Any, training: Any = None) -> Any:
        return self.drop(self.norm(x), training=training)


def data(rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((rows, 6, 8)).astype(np.float32)
    return x, x[:, 0, :4].argmax(1)


def classifier(pack: Any) -> keras.Model:
    """A model with blocks, one of them used twice, packed by `pack`."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6, 8))
    shared = pack(Encoder())
    x = pack(L.Dense(8, activation="gelu"))(shared(shared(inputs)))
    x = pack(keras.Sequential([pack(L.Dense(8, activation="relu")), L.BatchNormalization()]))(x)
    x = L.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, pack(L.Dense(4, activation="softmax"))(x))
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


def train(model: keras.Model, epochs: int = 1) -> list[np.ndarray]:
    x, y = data()
    model.fit(x, y, 16, epochs, verbose=0, shuffle=False)  # the last batch is an odd one
    return model.get_weights()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, saving
@pytest.mark.parametrize("recompute", [None, True])
def test_fit_nested_and_shared(recompute: bool | None, tmp_path: Any) -> None:
    plain = train(classifier(lambda layer: layer))
    model = classifier(lambda layer: gc.pack_activations(layer, LOSSLESS, recompute))
    assert error(train(model), plain) < 1e-5
    lossy = classifier(lambda layer: gc.pack_activations(layer, "quantize:bits=8", recompute))
    assert 0 < error(train(lossy), plain) < 3e-2
    x, _ = data()
    file = tmp_path / "model.keras"
    lossy.save(file)
    loaded = keras.models.load_model(file)
    assert equal(loaded.get_weights(), lossy.get_weights())
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), lossy.predict(x, verbose=0))
    packed = [layer for layer in loaded.layers if getattr(layer, "packs_activations", False)]
    assert [(p.codec, p.recompute) for p in packed] == [(gc.Quantize(8), recompute)] * len(packed)
    assert len(packed) == 4
    # It goes on as the one that was saved, but with dropout from the beginning.
    assert error(train(loaded), train(lossy)) < 0.1


def test_a_model_stays_a_model() -> None:
    model = gc.pack_activations(classifier(lambda layer: layer), LOSSLESS)
    plain = classifier(lambda layer: layer)
    assert [id(v) for v in model.weights] == [id(v) for v in model.layer.weights]
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    assert error(train(model), train(plain)) < 1e-5


def test_retracing_and_steps_per_execution() -> None:
    model = classifier(lambda layer: gc.pack_activations(layer, LOSSLESS, True))
    plain = classifier(lambda layer: layer)
    for one in (model, plain):
        one.compile(
            keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", steps_per_execution=2
        )
        x, y = data()
        for rows in (40, 12):
            one.fit(x[:rows], y[:rows], 8, verbose=0, shuffle=False)
    assert error(model.get_weights(), plain.get_weights()) < 1e-5


class Mixes(L.Layer):
    """Two inputs and an integer one, two outputs in a dict, and an option by keyword."""

    def build(self, x_shape: Any, z_shape: Any = None, **_: Any) -> None:
        self.w = self.add_weight(shape=(x_shape[-1], x_shape[-1]))

    def call(self, x: Any, z: Any, index: Any = None, scale: float = 1.0) -> Any:
        rows = tf.gather(tf.matmul(x, self.w), index)
        return {"sum": rows + z * scale, "product": rows * z, "index": index}


@pytest.mark.parametrize("graph", [False, True])
def test_several_inputs_and_outputs(graph: bool) -> None:
    index = tf.constant([2, 0, 1])
    x, z = numbers((3, 4)), numbers((3, 4), 2)

    def run(layer: Any) -> list[Any]:
        def once(x: Any, z: Any, index: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch([x, z])
                made = layer(x, z, index=index, scale=2.0)
                loss = tf.reduce_sum(tf.sin(made["sum"]) + made["product"])
            assert made["index"].dtype == tf.int32
            sources = [x, z, *[v.value for v in layer.trainable_variables]]
            return [made["index"], *tape.gradient(loss, sources)]

        return [t.numpy() for t in (tf.function(once) if graph else once)(x, z, index)]

    def make() -> Any:
        keras.utils.set_random_seed(5)
        layer = Mixes()
        layer(x, z, index=index)
        return layer

    plain = run(make())
    np.testing.assert_array_equal(plain[0], index)
    assert error(run(gc.pack_activations(make(), LOSSLESS)), plain) < 1e-6
    assert 0 < error(run(gc.pack_activations(make(), gc.FP16())), plain) < 1e-3


@pytest.mark.parametrize("recompute", [None, True])
def test_masks_go_through(recompute: bool | None) -> None:
    tokens = np.array([[3, 1, 0, 0], [2, 0, 0, 0], [4, 4, 1, 2]], np.int32)

    def model(pack: Any) -> keras.Model:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((4,), dtype="int32")
        x = L.Embedding(5, 8, mask_zero=True)(inputs)
        x = pack(Encoder(rate=0.0))(x)
        x = pack(L.LSTM(8, return_sequences=True))(x)
        x = pack(L.Dense(8, activation="relu"))(x)
        net = keras.Model(inputs, pack(L.GRU(3))(x))
        net.compile("sgd", "mse")
        return net

    plain = model(lambda layer: layer)
    ours = model(lambda layer: gc.pack_activations(layer, LOSSLESS, recompute))
    y = np.ones((3, 3), np.float32)
    for net in (plain, ours):
        net.fit(tokens, y, verbose=0, epochs=3)
    assert error(ours.get_weights(), plain.get_weights()) < 1e-6
    unmasked = tokens + (tokens == 0)
    assert np.abs(ours.predict(unmasked, verbose=0) - ours.predict(tokens, verbose=0)).max() > 1e-4


def test_training_is_told_apart() -> None:
    layer = gc.pack_activations(L.Dropout(0.5, seed=1), gc.FP16())
    x = tf.ones((100,))
    np.testing.assert_array_equal(layer(x, training=False), x)
    np.testing.assert_array_equal(layer(x), x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        np.testing.assert_array_equal(layer(x, training=False), x)
        dropped = layer(x, training=True)
    np.testing.assert_array_equal(tape.gradient(dropped, x), dropped)
    assert set(np.unique(dropped)) == {0.0, 2.0}


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    x = numbers((4, 6, 8))

    def make() -> Any:
        return Encoder(dtype=policy)

    keras.config.set_dtype_policy(policy)
    try:
        plain, _ = step(built(make, x), x, True, 1)
        as_it_is, _ = step(gc.pack_activations(built(make, x), "fp16", True), x, True, 1)
        smaller, _ = step(gc.pack_activations(built(make, x), "fp8"), x, True, 1)
    finally:
        keras.config.set_dtype_policy("float32")
    wide = [[t.astype(np.float32) for t in made] for made in (plain, as_it_is, smaller)]
    # Only x itself is float32, and loses the bits that the layer's own cast loses.
    assert error(wide[1], wide[0]) < 2e-2
    assert 1e-3 < error(wide[2][1:], wide[0][1:]) < 0.1


def test_losses_inside_are_forwarded() -> None:
    class Adds(L.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = L.Dense(3, activity_regularizer="l2", kernel_regularizer="l1")

        def call(self, x: Any) -> Any:
            y = self.inner(x)
            self.add_loss(tf.reduce_sum(tf.abs(y)) * 0.1)
            return y

    x = numbers((5, 4))
    for graph in (False, True):
        made = []
        for recompute in ("plain", None, True):
            layer = built(Adds, x)
            if recompute != "plain":
                layer = gc.pack_activations(layer, LOSSLESS, recompute)

            def once(layer: Any = layer) -> list[Any]:
                with tf.GradientTape() as tape:
                    layer(x)
                    losses = layer.losses
                    total = tf.add_n(losses)
                assert len(losses) == 3
                return [total, *tape.gradient(total, [v.value for v in layer.trainable_variables])]

            made.append([t.numpy() for t in (tf.function(once) if graph else once)()])
        assert equal(made[0], made[1]) or error(made[1], made[0]) < 1e-6
        assert error(made[2], made[0]) < 1e-6


@pytest.mark.parametrize("graph", [False, True])
def test_functions(graph: bool) -> None:
    w = tf.Variable(numbers((8, 8)))

    def function(x: Any, offset: Any, power: int = 2) -> Any:
        return tf.nn.silu(tf.matmul(x, w) + tf.cast(offset, tf.float32)) ** power

    def run(function: Any) -> list[Any]:
        def once(x: Any, offset: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x, offset, power=3)
            return [y, *tape.gradient(y, [x, w])]

        made = (tf.function(once) if graph else once)(numbers((5, 8)), tf.constant(2))
        return [t.numpy() for t in made]

    plain = run(function)
    assert error(run(gc.pack_activations(function, LOSSLESS)), plain) < 1e-6
    assert 0 < error(run(gc.pack_activations(function, gc.FP16())), plain) < 1e-3


STOCK = {
    "tf.recompute_grad": lambda layer: tf.recompute_grad(lambda x: layer(x, training=True)),
    "keras.remat": lambda layer: keras.remat(lambda x: layer(x, training=True)),
}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("stock", STOCK)
def test_stock_recomputation_draws_another_mask(stock: str, graph: bool) -> None:
    """What is wrong in `tf.recompute_grad` and `keras.remat`, silently, and right here."""
    x = numbers((64, 8))

    def gradient_and_states(wrap: Any) -> tuple[Any, Any]:
        layer = built(Drops, x)
        function = wrap(layer)

        def once(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
                loss = tf.reduce_sum(y * tf.constant(np.arange(8, dtype=np.float32)))
            return tape.gradient(loss, x), y

        made = (tf.function(once) if graph else once)(x)
        return made[0].numpy(), [v.numpy() for v in layer.non_trainable_variables]

    def packed(layer: Any) -> Any:
        whole = gc.pack_activations(layer, LOSSLESS, True)
        return lambda x: whole(x, training=True)

    plain, states = gradient_and_states(lambda layer: lambda x: layer(x, training=True))
    ours, our_states = gradient_and_states(packed)
    theirs, their_states = gradient_and_states(STOCK[stock])
    assert error([ours], [plain]) < 1e-6
    assert equal(our_states, states)
    assert error([theirs], [plain]) > 0.1
    names = [v.path.split("/")[-1] for v in built(Drops, x).non_trainable_variables]
    differ = [n for n, a, b in zip(names, their_states, states, strict=True) if (a != b).any()]
    # The seed advanced twice, the statistics were updated twice.
    assert differ == ["moving_mean", "moving_variance", "seed_generator_state"]


def test_a_remat_scope_draws_another_mask_too() -> None:
    x = numbers((64, 8))

    def gradient(make: Any) -> Any:
        keras.utils.set_random_seed(5)
        layer = make()
        layer(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        return tape.gradient(y, x), layer.seed_generator.state.numpy()

    def scoped() -> Any:
        with keras.RematScope("full"):
            return L.Dropout(0.5, seed=1)

    def packed() -> Any:
        packed = gc.pack_activations(L.Dropout(0.5, seed=1), LOSSLESS, True)
        packed.seed_generator = packed.layer.seed_generator
        return packed

    (plain, seed), (theirs, their_seed), (ours, our_seed) = map(
        gradient, (lambda: L.Dropout(0.5, seed=1), scoped, packed)
    )
    assert equal([ours, our_seed], [plain, seed])
    assert error([theirs], [plain]) > 0.1
    assert (their_seed != seed).any()


def test_keras_remat_fails_in_a_graph() -> None:
    x, y = data()

    def model(scope: Any) -> keras.Model:
        with scope:
            net = keras.Sequential([keras.Input((6, 8)), L.Dense(4), L.GlobalAveragePooling1D()])
        net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return net

    model(contextlib.nullcontext()).fit(x, y, verbose=0)
    with pytest.raises(ValueError, match="keywords arguments only when eager"):
        model(keras.RematScope("full")).fit(x, y, verbose=0)


def test_what_cannot_be_packed_is_named() -> None:
    x = numbers((5, 4))
    spectral = gc.pack_activations(built(lambda: L.SpectralNormalization(L.Dense(3)), x), "fp16")
    with (
        tf.GradientTape(),
        pytest.raises(gc.ActivationError, match=r"SpectralNormalization.*kernel"),
    ):
        spectral(x, training=True)
    with pytest.raises(gc.ActivationError, match=r"LSTM.*no formula.*recompute=False"):
        gc.pack_activations(built(lambda: L.LSTM(3), numbers((2, 3, 4))), "fp16", recompute=False)
    with pytest.raises(gc.ActivationError, match="not int"):
        gc.pack_activations(3)
    with pytest.raises(gc.ActivationError, match=r"function .*lambda.* has no formula"):
        gc.pack_activations(lambda x: x, "fp16", recompute=False)
    for codec in ("topk:density=0.1", "sign", "none"):
        with pytest.raises(gc.CodecError, match="activation"):
            gc.pack_activations(L.Dense(3), codec)


def test_integers_and_resources_go_through() -> None:
    """Also where they are all that a function is given beside a float."""
    table = tf.Variable(numbers((5, 3)))
    x, rows = numbers((4, 3)), tf.constant([0, 4, 4, 1])

    def function(x: Any, handle: Any, rows: Any) -> Any:
        found = tf.raw_ops.ResourceGather(resource=handle, indices=rows, dtype=tf.float32)
        return tf.sin(x * found), handle, rows

    packed = gc.pack_activations(function, gc.FP16())

    def run(function: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, handle, same = function(x, table.handle, rows)
        assert (handle.dtype, same.dtype) == (tf.resource, tf.int32)
        return y, same, tape.gradient(y, x)

    for ours in (run(packed), tf.function(run)(packed)):
        plain = run(function)
        np.testing.assert_array_equal(ours[1], rows)
        np.testing.assert_allclose(ours[0], plain[0], rtol=1e-6)
        assert 0 < error([ours[2].numpy()], [plain[2].numpy()]) < 1e-3


def test_a_function_that_draws_is_refused() -> None:
    seeds = keras.random.SeedGenerator(7)
    function = gc.pack_activations(lambda x: keras.random.dropout(x, 0.5, seed=seeds))
    for run in (function, tf.function(function)):
        with (
            tf.GradientTape(),
            pytest.raises(gc.ActivationError, match=r"seed_generator.*Pack the"),
        ):
            run(numbers((5, 4)))


def test_a_dtype_that_no_codec_takes() -> None:
    x = tf.cast(numbers((5, 4)), tf.float64)
    layer = gc.pack_activations(built(lambda: L.Dense(3, dtype="float64"), x), gc.FP16())
    with tf.GradientTape(), pytest.raises(gc.CodecError, match=r"float64 can't be packed by fp16"):
        layer(x)


def test_under_xla_casts_run_and_others_say_what_to_do() -> None:
    x = numbers((4, 6, 8))

    def gradient(layer: Any) -> Any:
        @tf.function(jit_compile=True)
        def run(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_mean(tf.square(layer(x, training=True)))
            return tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])

        return [t.numpy() for t in run(x)]

    plain = gradient(built(Encoder, x))
    for recompute in (None, True):
        for spec, bound in (("identity", 1e-6), ("fp16", 1e-3), ("bf16", 1e-2)):
            ours = gradient(gc.pack_activations(built(Encoder, x), spec, recompute))
            assert error(ours, plain) < bound
    with pytest.raises(gc.CodecError, match=r"XLA.*gc.FP16\(\) or gc.BF16\(\)"):
        gradient(gc.pack_activations(built(Encoder, x), "quantize:bits=8"))
    assert gc.pack_activations(Encoder(), "fp16").supports_jit
    assert not gc.pack_activations(Encoder(), "quantize:bits=8").supports_jit


@pytest.mark.parametrize("recompute", [None, True])
def test_second_derivatives_are_refused(recompute: bool | None) -> None:
    x = numbers((4, 7))
    layer = gc.pack_activations(built(lambda: L.Dense(5, activation="tanh"), x), "fp16", recompute)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(tf.sin(layer(x)))
        dx = inner.gradient(y, x)
        loss = tf.reduce_sum(dx * dx)
    with pytest.raises(gc.ActivationError, match="first derivatives only"):
        outer.gradient(loss, x)
