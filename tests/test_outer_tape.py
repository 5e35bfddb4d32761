"""A forward pass that is a function of its own, under a tape outside of it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from packed_layers import FORMULAS, OTHERS, Encoder, built, error, numbers

import gradcomp as gc
from gradcomp.activations import override

L = keras.layers
# How to make a layer, the shape of its input, `recompute`, and the bytes of its payloads.
CASES = {
    "encoder": (Encoder, (4, 64, 8), None, None),
    # The input, and bits of the first run: two dropouts, and that of 4 · 2 · 64² probabilities.
    "encoder, again": (Encoder, (4, 64, 8), True, 2048 + 4 * 8 + 2 * 256 + 4096),
    "relu": (*FORMULAS["dense relu"], None, 28 + 4 + 3),  # the input, and 20 bits
    "convolution": (*FORMULAS["conv2d"], None, 1080 + 4 * 5 + 25),
    "max pool": (*FORMULAS["max pool"], None, 60),  # 240 places of two bits
    "average pool": (*FORMULAS["average pool"], None, 0),
    "dropout": (*FORMULAS["dropout"], None, 135),
    "spatial dropout": (*FORMULAS["spatial dropout"], None, 0),
    "silu": (*FORMULAS["activation"], None, 28 + 4),
    "sigmoid": (*FORMULAS["dense sigmoid"], None, 84 + 4 + 60 + 4),
    "batch norm": (*OTHERS["batch norm"], None, 1080 + 4 * 5),
    "lstm": (*OTHERS["lstm"], None, 96 + 4),
}


def gradients_and_captures(
    layer: Any, x: Any
) -> tuple[list[np.ndarray], list[tf.Tensor], list[tf.Tensor]]:
    """Gradients of a layer called in a `tf.function`, and what backward is given of forward.

    Returns:
      gradients; activations; what depends on weights and constants alone.
    """
    sessions = []

    @tf.function(autograph=False)
    def forward(x: Any) -> Any:
        with override.packing(None) as session:
            sessions.append(session)
            return override.noted(layer(x, training=True))

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = forward(x)
        loss = tf.reduce_mean(tf.square(y))
    made = tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])
    (backward,) = sessions[-1].backward
    graph = sessions[-1].graph
    outside = [source(t) for t, _ in backward.captures if getattr(t, "graph", None) is graph]
    is_activation = sessions[-1].reach.is_activation
    kept, weights = ([t for t in outside if is_activation(t) is wanted] for wanted in (True, False))
    return [g.numpy() for g in made], kept, weights


def source(t: Any) -> Any:
    """What a tensor is a copy of, where a custom gradient has passed it on."""
    return t.op.inputs[t.value_index] if t.op.type == "IdentityN" else t


def size_of(t: Any) -> int:
    """Bytes of a tensor; what leads gradients back is of one element, though nobody knows."""
    if t.op.type in ("Slice", "PlaceholderWithDefault") and not t.shape.is_fully_defined():
        return t.dtype.size
    return t.shape.num_elements() * t.dtype.size


@pytest.mark.parametrize("name", CASES)
def test_payloads_and_whole_weights_are_kept(name: str) -> None:
    make, shape, recompute, payloads = CASES[name]
    x = numbers(shape)
    layer = built(make, x)
    plain, *_ = gradients_and_captures(built(make, x), x)
    packed = gc.pack_activations(layer, "quantize:bits=8", recompute)
    ours, kept, weights = gradients_and_captures(packed, x)
    # Statistics of rows may stay.
    assert not [t for t in kept if t.dtype.is_floating and size_of(t) > x.shape.num_elements()]
    found = sum(size_of(t) for t in kept if t.dtype == tf.uint8)
    assert found == payloads or payloads is None
    shapes = {tuple(v.shape) for v in layer.weights}
    assert all(tuple(t.shape) in shapes for t in weights if t.dtype.is_floating and t.shape.rank)
    assert error(ours, plain) < 0.05


@pytest.mark.parametrize("recompute", [None, True], ids=["formula", "recomputed"])
def test_loops_hand_on_what_is_kept(recompute: bool | None) -> None:
    """A loop has a gradient graph of its own, in which tensors have other names."""
    x = numbers((2, 6, 8))

    def make() -> keras.Model:
        return keras.Sequential(
            [keras.Input((6, 8)), Encoder(rate=0.0), L.Dense(8, "relu"), L.BatchNormalization()]
        )

    def gradients(layer: Any) -> list[np.ndarray]:
        @tf.function
        def run(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x
                for _ in tf.range(3):
                    y = layer(y)
                loss = tf.reduce_sum(tf.sin(y))
            return tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])

        return [g.numpy() for g in run(x)]

    plain = gradients(built(make, x))
    ours = gradients(gc.pack_activations(built(make, x), gc.Identity(), recompute))
    assert error(ours, plain) < 1e-5
    lossy = gradients(gc.pack_activations(built(make, x), gc.FP16(), recompute))
    assert 1e-6 < error(lossy, plain) < 1e-2
