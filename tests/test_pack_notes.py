"""What the first run of a packed call hands on to the second: bits, positions and shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from packed_layers import IMAGE, ROWS, STEPS, built, equal, error, numbers, step

import gradcomp as gc

L = keras.layers
COARSE = "quantize:bits=4"


def sequence(*layers: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: keras.Sequential([make() for make in layers])


def again(make: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: gc.pack_activations(make(), COARSE, True)


KINKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "relu": (L.ReLU, IMAGE),
    "relu with three slopes": (lambda: L.ReLU(2.0, 0.1, 0.2), IMAGE),
    "activation": (lambda: L.Activation("relu6"), ROWS),
    "max pool": (lambda: L.MaxPooling2D(2), IMAGE),
    "max pool 1d": (lambda: L.MaxPooling1D(3, strides=1), STEPS),
    "dropout": (lambda: L.Dropout(0.4, seed=3), IMAGE),
    "all": (
        sequence(L.ReLU, lambda: L.Dropout(0.4, seed=3), lambda: L.MaxPooling2D(2), L.LeakyReLU),
        IMAGE,
    ),
    "nested": (sequence(again(L.ReLU), again(lambda: L.Dropout(0.4, seed=3))), IMAGE),
}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", KINKS)
def test_a_second_run_has_the_kinks_of_the_first(name: str, graph: bool) -> None:
    """Of few bits, many an element is on the other side of a kink, or not the largest."""
    make, shape = KINKS[name]
    x = numbers(shape)

    def gradient(layer: Any) -> Any:
        def once(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
            return tape.gradient(y, x, numbers(tuple(y.shape), 2))

        return (tf.function(once) if graph else once)(x).numpy(), [
            v.numpy() for v in layer.non_trainable_variables
        ]

    plain, states = gradient(built(lambda: unpacked(make), x))
    ours, our_states = gradient(gc.pack_activations(built(make, x), COARSE, True))
    np.testing.assert_allclose(ours, plain, rtol=1e-6)
    assert equal(our_states, states)


def unpacked(make: Callable[[], Any]) -> Any:
    """The layer, with those that are packed inside it as they are."""
    layer = make()
    if isinstance(layer, keras.Sequential):
        return keras.Sequential([getattr(inner, "layer", inner) for inner in layer.layers])
    return layer


def reachable(function: Any, kinds: tuple[str, ...]) -> int:
    """How many ops of these kinds a traced function's results depend on."""
    pending, seen = [t.op for t in function.graph.outputs], set()
    while pending:
        op = pending.pop()
        if op not in seen:
            seen.add(op)
            pending += [t.op for t in op.inputs] + list(op.control_inputs)
    return sum(op.type in kinds for op in seen)


def test_what_a_formula_and_a_second_run_need_is_kept_once() -> None:
    inputs = keras.Input((8,))
    both = [L.Dense(8)(inputs), L.BatchNormalization()(inputs)]
    layer = gc.pack_activations(keras.Model(inputs, both), "quantize:bits=8")

    @tf.function(input_signature=[tf.TensorSpec([4, 8])], autograph=False)
    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(tf.square(y)) for y in layer(x, training=True))
        return tape.gradient(loss, [v.value for v in layer.trainable_variables])

    assert reachable(run.get_concrete_function(), ("GradcompEncode",)) == 1


def test_what_is_known_is_not_computed_again() -> None:
    inputs = keras.Input((8,))
    y = L.Dropout(0.1, seed=1)(L.Dense(8)(L.Dense(8, activation="gelu")(inputs)))
    block = keras.Model(inputs, L.Add()([inputs, y]))

    def ops(layer: Any, kinds: tuple[str, ...]) -> int:
        @tf.function(input_signature=[tf.TensorSpec([None, 8])], autograph=False)
        def run(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.square(layer(x, training=True)))
            return tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])

        return reachable(run.get_concrete_function(), kinds)

    draws = ("StatelessRandomUniformV2", "GradcompDrawMask")
    plain = ops(block, ("MatMul",)), ops(block, draws)
    packed = gc.pack_activations(block, "fp16", True)
    assert plain == (6, 1)
    # The first product once more, the last is needed for nothing but its shape.
    assert (ops(packed, ("MatMul",)), ops(packed, draws)) == (7, 1)


@pytest.mark.parametrize("recompute", [None, True])
def test_sums_of_repeated_batches(recompute: bool | None) -> None:
    inputs = [keras.Input((3,)), keras.Input((3,))]
    model = gc.pack_activations(keras.Model(inputs, L.Add()(inputs)), "fp16", recompute)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])] * 2)
    def run(one: Any, many: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([one, many])
            total = model([one, many], training=True)
        return tape.gradient(total, [one, many])

    of_one, of_many = run(numbers((1, 3)), numbers((5, 3)))
    np.testing.assert_array_equal(of_one, np.full((1, 3), 5.0))
    np.testing.assert_array_equal(of_many, np.ones((5, 3)))


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("codec", ["identity", "fp16"])
@pytest.mark.parametrize("make", [L.Add, L.Multiply])
def test_a_tensor_given_twice(make: Any, codec: str, graph: bool) -> None:
    x = tf.round(numbers(ROWS) * 8)  # exact in float16
    packed = gc.pack_activations(make(), codec, True)

    def gradient(layer: Any) -> Any:
        def once(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer([x, x])
            return tape.gradient(y, x)

        return (tf.function(once) if graph else once)(x)

    np.testing.assert_array_equal(gradient(packed), gradient(make()))


class Loops(L.Layer):
    """Calls a layer in the body of a loop, and once outside."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.relu = L.Dense(7, activation="relu"), L.ReLU()

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    def call(self, x: Any) -> Any:
        rows = tf.map_fn(lambda row: self.dense(row[None])[0], x)
        return self.relu(rows - 0.1)


@pytest.mark.parametrize("graph", [False, True])
def test_bits_stay_in_the_loop_that_made_them(graph: bool) -> None:
    x = numbers(ROWS)
    plain, _ = step(built(Loops, x), x, graph)
    ours, _ = step(gc.pack_activations(built(Loops, x), gc.Identity(), True), x, graph)
    coarse, _ = step(gc.pack_activations(built(Loops, x), "fp16", True), x, graph)
    assert error(ours, plain) < 1e-6
    assert error(coarse, plain) < 1e-3


@pytest.mark.parametrize("counts", [(1, 2), (2, 1)])
def test_a_second_run_that_does_something_else_is_told(counts: tuple[int, int]) -> None:
    class Changes(L.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.counts = L.Dropout(0.5, seed=1), list(counts)

        def call(self, x: Any) -> Any:
            for _ in range(self.counts.pop(0)):
                x = self.drop(x, training=True)
            return x

    layer, x = Changes(), numbers(ROWS)
    layer.build(ROWS)
    packed = gc.pack_activations(layer, "fp16", True)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = packed(x)
    with pytest.raises(gc.ActivationError, match="something else when it was run again"):
        tape.gradient(y, x)
