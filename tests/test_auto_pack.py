"""Packing without a change to the model: equal gradients, less memory, what is out of reach."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from stash import Stash

import gradcomp as gc

L = keras.layers


def attention(x: Any, width: int = 32) -> Any:
    y = L.LayerNormalization()(x)
    x = x + L.Dropout(0.1)(L.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y))
    y = L.Dense(4 * width, activation="gelu")(L.LayerNormalization()(x))
    return x + L.Dropout(0.1)(L.Dense(width)(y))


def two_inputs() -> keras.Model:
    """Tokens and an image in, a sequence and logits out."""
    tokens = keras.Input((16,), dtype="int32", name="tokens")
    image = keras.Input((16, 16, 3), name="image")
    x = attention(L.Embedding(50, 32)(tokens))
    y = L.Conv2D(8, 3, padding="same")(image)
    y = L.MaxPooling2D()(L.Activation("relu")(L.BatchNormalization()(y)))
    y = L.Dense(32, activation="softmax")(L.Flatten()(y))
    return keras.Model([tokens, image], [x * y[:, None], L.Dense(5)(y)])


def dense(*shape: int | None) -> keras.Model:
    return keras.Sequential([keras.Input(shape), L.Dense(64, "gelu")])


def batch() -> list[Any]:
    random = np.random.default_rng(0)
    tokens = random.integers(0, 50, (4, 16)).astype(np.int32)
    return [tf.constant(tokens), tf.constant(random.standard_normal((4, 16, 16, 3), np.float32))]


def twins(make: Callable[[], keras.Model], codec: Any) -> tuple[keras.Model, keras.Model]:
    """A model and its equal that packs."""
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        models.append(make())
    return models[0], gc.auto_pack(models[1], codec)


def step(model: keras.Model, inputs: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        outputs = model(inputs, **kwargs)
        floats = [tf.cast(o, tf.float32) for o in tf.nest.flatten(outputs)]
        loss = tf.add_n([tf.reduce_sum(tf.square(o)) for o in floats])
        loss += tf.add_n([tf.constant(0.0), *model.losses])
    return outputs, tape.gradient(loss, [v.value for v in model.trainable_variables])


def apart(some: Any, others: Any) -> float:
    """The norm of the difference of lists of arrays, relative to the first's norm."""
    some, others = ([tf.convert_to_tensor(t) for t in tf.nest.flatten(x)] for x in (some, others))
    difference = sum(float(tf.norm(a - b)) ** 2 for a, b in zip(some, others, strict=True))
    return (difference / sum(float(tf.norm(a)) ** 2 for a in some)) ** 0.5


@pytest.mark.parametrize(("graph", "training"), [(False, True), (True, True), (False, False)])
def test_a_lossless_codec_changes_nothing(graph: bool, training: bool) -> None:
    plain, packed = twins(two_inputs, Stash())
    run = tf.function(step) if graph else step
    outputs, gradients = run(plain, batch(), training=training)
    own_outputs, own_gradients = run(packed, batch(), training=training)
    assert apart(outputs, own_outputs) < 1e-6
    assert apart(gradients, own_gradients) < 1e-6
    for mine, others in zip(plain.variables, packed.variables, strict=True):
        np.testing.assert_allclose(mine, others, rtol=1e-6)  # statistics and seeds too
    report = packed.call.report()
    assert {row.kept for row in report.packed} == ({"stash", "1 bit"} if training else {"stash"})
    assert not [row for row in report.rest if row.dtype.startswith("float")]


def test_shapes_known_only_in_a_run() -> None:
    plain, packed = twins(
        lambda: keras.Sequential([keras.Input((None, 32)), L.Dense(64, "gelu")]), Stash()
    )
    signature = [tf.TensorSpec([None, None, 32])]
    x = tf.random.normal([4, 16, 32])
    some, others = (
        tf.function(lambda x, m=m: step(m, x), input_signature=signature)(x)
        for m in (plain, packed)
    )
    assert apart(some, others) < 1e-6
    assert packed.call.report().packed


@pytest.mark.parametrize(("codec", "bound"), [("fp16", 2e-3), ("quantize:bits=8", 3e-2)])
def test_gradients_are_within_the_codecs_error(codec: str, bound: float) -> None:
    plain, packed = twins(two_inputs, codec)
    outputs, gradients = step(plain, batch(), training=True)
    own_outputs, own_gradients = step(packed, batch(), training=True)
    assert apart(outputs, own_outputs) < 1e-6
    assert 1e-7 < apart(gradients, own_gradients) < bound


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras saves
def test_fit_trains_alike_and_is_saved(tmp_path: Path) -> None:
    models = twins(two_inputs, Stash())
    inputs = [np.tile(x, (2,) + (1,) * (x.ndim - 1)) for x in map(np.asarray, batch())]
    targets = [np.ones((8, 16, 32), np.float32), np.ones((8, 5), np.float32)]
    for model in models:
        names = [v.path for v in model.variables]
        model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
        model.fit(inputs, targets, batch_size=4, epochs=2, shuffle=False, verbose=0)
        assert [v.path for v in model.variables] == names
    plain, packed = models
    assert apart(plain.get_weights(), packed.get_weights()) < 1e-6
    packed.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs)[1], packed(inputs)[1])
    assert not isinstance(loaded.call, type(packed.call))


def test_neither_weights_nor_integers_are_packed() -> None:
    _, packed = twins(two_inputs, gc.FP16())
    step(packed, batch(), training=True)
    report = packed.call.report()
    shapes = {tuple(v.shape) for v in packed.trainable_variables}
    for row in (*report.packed, *report.rest):
        assert row.shape not in shapes
    assert {row.dtype for row in report.packed} == {"float32", "bool"}
    assert report.bytes < 0.6 * report.raw
    assert f"{report.raw:,}" in str(report)


def test_gradients_of_a_function_and_its_variables() -> None:
    """With a branch for AutoGraph, keyword arguments, and a structure returned."""
    weight = tf.Variable(tf.random.normal([32, 64], seed=1))

    def function(x: Any, *, scale: float) -> dict[str, Any]:
        y = tf.math.tanh(x @ weight)
        if tf.reduce_sum(x) > 0:
            y = scale * y
        return {"y": y * y, "count": tf.shape(y)[0]}

    x = tf.ones([64, 32])
    found = []
    for each in (
        function,
        gc.auto_pack(function, Stash()),
        gc.auto_pack(tf.function(function), Stash()),
    ):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = each(x, scale=3.0)
        assert int(outputs["count"]) == 64
        found.append(tape.gradient(outputs["y"], [x, weight]))
    assert apart(found[0], found[1]) < 1e-6
    assert apart(found[0], found[2]) < 1e-6


def test_a_function_that_is_given_to_another_still_packs() -> None:
    """`tf.function` looks into arguments that say what they wrap."""
    x = tf.ones([64, 64])
    packed = gc.auto_pack(lambda x: tf.math.tanh(x) * x, gc.FP16())

    @tf.function
    def gradient(function: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    gradient(packed, x)
    assert packed.report().packed


def test_layers_used_twice() -> None:
    def make() -> keras.Model:
        x = inputs = keras.Input((16, 32))
        shared = keras.Sequential([L.Dense(32, "tanh"), keras.Sequential([L.LayerNormalization()])])
        return keras.Model(inputs, [shared(shared(x)), shared(x)])

    plain, packed = twins(make, Stash())
    x = tf.random.normal([8, 16, 32])
    assert apart(step(plain, x), step(packed, x)) < 1e-6
    assert packed.call.report().packed


class Recurrent(L.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = L.LSTM(32, return_sequences=True)

    def call(self, x: Any) -> Any:
        return self.lstm(x)


@tf.function
def inner(x: Any) -> Any:
    return tf.exp(x) * x


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (Recurrent, "the loop .*while"),
        (lambda: L.Activation("silu"), "the custom gradient"),
        (lambda: L.Lambda(inner), "the tf.function .*inner"),
    ],
)
def test_what_is_out_of_reach_is_told_and_right(layer: Any, told: str) -> None:
    def make() -> keras.Model:
        return keras.Sequential([keras.Input((16, 32)), L.Dense(32, "tanh"), layer()])

    plain, packed = twins(make, Stash())
    x = tf.random.normal([8, 16, 32])
    with pytest.warns(UserWarning, match=told):
        _, gradients = step(packed, x)
    assert apart(step(plain, x)[1], gradients) < 1e-6
    assert packed.call.report().packed


def test_what_is_kept_whole_is_reported() -> None:
    packed = gc.auto_pack(keras.Sequential([keras.Input((512,)), L.Activation("silu")]), gc.FP16())
    x = tf.ones([8, 512])
    with pytest.warns(UserWarning, match="custom gradient"), tf.GradientTape() as tape:
        tape.watch(x)
        y = packed(x)
    tape.gradient(y, x)
    report = packed.call.report()
    assert not report.packed
    assert {(r.kept, r.raw, r.bytes) for r in report.rest} == {
        ("as it is: out of reach", 16384, 16384)
    }


def test_masks_and_losses_pass_through() -> None:
    def make() -> keras.Model:
        x = tokens = keras.Input((16,), dtype="int32")
        x = L.Embedding(50, 64, mask_zero=True)(x)
        x = L.Dense(64, "tanh", activity_regularizer="l2", kernel_regularizer="l2")(x)
        inside = keras.Model(tokens, x)
        return keras.Sequential(
            [keras.Input((16,), dtype="int32"), inside, L.GlobalAveragePooling1D()]
        )

    models = []
    for codec in (None, Stash()):
        keras.utils.set_random_seed(0)
        models.append(make())
        if codec is not None:
            gc.auto_pack(models[-1].layers[0], codec)
    tokens = tf.constant(np.tile([[3, 4, 5, 0]], (8, 4)), tf.int32)
    (outputs, gradients), (own_outputs, own_gradients) = (step(m, tokens) for m in models)
    assert apart(outputs, own_outputs) < 1e-6
    assert apart(gradients, own_gradients) < 1e-6
    assert len(models[0].losses) == len(models[1].losses) == 2
    assert apart(models[0].losses, models[1].losses) < 1e-6


@pytest.mark.parametrize(
    ("policy", "codec", "packs"),
    [
        ("mixed_float16", gc.Quantize(bits=8), True),
        ("mixed_float16", gc.FP16(), False),
        ("mixed_bfloat16", gc.FP8(), True),
        ("float64", gc.FP16(), False),
    ],
)
def test_other_floats_are_packed_where_that_saves(policy: str, codec: Any, packs: bool) -> None:
    def make() -> keras.Model:
        return keras.Sequential([keras.Input((64,)), L.Dense(64, "tanh", dtype=policy)])

    plain, packed = twins(make, codec)
    x = tf.random.normal([64, 64])
    (_, some), (_, others) = (step(m, x) for m in (plain, packed))
    assert apart(some, others) < 0.1
    report = packed.call.report()
    assert any("float32" not in row.dtype for row in report.packed) == packs
    assert packs or any("no codec takes" in r.kept or "no smaller" in r.kept for r in report.rest)


def test_stateless_calls_and_the_switch_keep_all(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, packed = twins(
        lambda: keras.Sequential([keras.Input((64,)), L.Dense(64, "tanh")]), gc.FP16()
    )
    x = tf.random.normal([64, 64])
    values = [v.value for v in packed.trainable_variables]
    np.testing.assert_allclose(packed.stateless_call(values, [], x)[0], plain(x), rtol=1e-6)
    monkeypatch.setenv("GRADCOMP_DISABLE", "1")
    with warnings.catch_warnings(action="ignore"):
        step(packed, x)
    report = packed.call.report()
    assert not report.packed
    assert not report.raw


def test_bad_input_is_refused() -> None:
    model = keras.Sequential([keras.Input((4,)), L.Dense(4)])
    with pytest.raises(gc.CodecError, match="needs a codec"):
        gc.auto_pack(model, "none")
    with pytest.raises(gc.CodecError, match="keeps too little"):
        gc.auto_pack(model, gc.TopK(density=0.1))
    with pytest.raises(gc.CodecError, match="a function or a Keras layer, got 3"):
        gc.auto_pack(3, gc.FP16())
    assert gc.auto_pack(model, gc.FP16()).supports_jit
    with pytest.raises(gc.CodecError, match="packed already, with fp16"):
        gc.auto_pack(model, gc.FP16())


_MEMORY = """
import json, sys
sys.path.insert(0, "tests")
import keras, tensorflow as tf
import gradcomp as gc
from gradcomp.memory.usage import process_memory
from test_auto_pack import attention, step
x = inputs = keras.Input((64, 256))
for _ in range(6):
    x = attention(x, 256)
model = keras.Model(inputs, x)
if sys.argv[1] != "plain":
    gc.auto_pack(model, sys.argv[1])
signature = [tf.TensorSpec([None, 64, 256])]
run = tf.function(lambda x: step(model, x, training=True)[1], input_signature=signature)
run(tf.zeros([1, 64, 256]))
open("/proc/self/clear_refs", "w").write("5")
before = process_memory().current
run(tf.zeros([32, 64, 256]))
print(json.dumps(process_memory().peak - before))
"""


def test_memory_is_saved_on_an_unmodified_block() -> None:
    def peak(mode: str) -> int:
        command = [sys.executable, "-c", _MEMORY, mode]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return int(json.loads(done.stdout.splitlines()[-1]))

    plain, packed = peak("plain"), peak("quantize:bits=8")
    assert plain > 2e8
    assert packed <= 0.55 * plain
