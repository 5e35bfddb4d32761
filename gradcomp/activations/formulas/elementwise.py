"""Activation functions: what each needs in backward, and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import activations

from gradcomp.activations.keep import keep, not_packing, remember
from gradcomp.activations.masks import pack_mask, unpack_mask
from gradcomp.activations.replay import replay_kept
from gradcomp.codecs import Codec

# Their gradient follows from what they return: dx of (y, dy).
_FROM_OUTPUT: dict[Any, Callable[[Any, Any], Any]] = {
    activations.sigmoid: lambda y, dy: dy * y * (1 - y),
    activations.tanh: lambda y, dy: dy * (1 - tf.square(y)),
}
# Computed again from their packed input, which stands for their output too.
_FROM_INPUT = (
    activations.celu,
    activations.elu,
    activations.exponential,
    activations.gelu,
    activations.hard_sigmoid,
    activations.hard_silu,
    activations.leaky_relu,
    activations.log_softmax,
    activations.mish,
    activations.relu6,
    activations.selu,
    activations.silu,
    activations.softplus,
    activations.softsign,
)


def activate(function: Any, x: Any, codec: Codec) -> Any:
    """`function(x)` of an activation function, with as little kept as it needs.

    One that is not Keras's own is called as it is: what it keeps is not known.
    """
    if function is None or function is activations.linear:
        return x
    if function is activations.relu:
        return relu(x)
    if function is activations.softmax:
        return softmax(function, x, -1, codec)
    if function in _FROM_OUTPUT:
        return _from_output(function, _FROM_OUTPUT[function], x, codec)
    if function in _FROM_INPUT:
        return from_input(function, x, codec)
    return function(x)


def from_input(function: Callable[[Any], Any], x: Any, codec: Codec) -> Any:
    """Keeps the packed input; backward computes the function, and its output, from that."""
    kept = keep(x, codec)
    output = replay_kept(function, [x], [kept], [])

    def again(after: Sequence[Any]) -> Any:
        return function(kept(after))

    remember(output, again)
    return output


def relu(x: Any) -> Any:
    """Keeps one bit an element: whether it was above 0."""

    @tf.custom_gradient
    def run(x: Any) -> Any:
        with not_packing():
            y = activations.relu(x)
            mask = pack_mask(y > 0)

        def gradient(dy: Any) -> Any:
            return tf.where(unpack_mask(mask, tf.shape(dy), [dy]), dy, tf.zeros_like(dy))

        return y, gradient

    return run(x)


def softmax(function: Callable[[Any], Any], x: Any, axis: Any, codec: Codec) -> Any:
    """Keeps the packed output, along `axis`."""

    def gradient(y: Any, dy: Any) -> Any:
        return y * (dy - tf.reduce_sum(y * dy, axis, keepdims=True))

    return _from_output(function, gradient, x, codec)


def _from_output(
    function: Callable[[Any], Any], formula: Callable[[Any, Any], Any], x: Any, codec: Codec
) -> Any:
    """Keeps the packed output."""

    @tf.custom_gradient
    def run(x: Any) -> Any:
        with not_packing():
            y = function(x)
            kept = keep(y, codec)
        made.append(kept)
        return y, lambda dy: formula(kept([dy]), dy)

    made: list[Any] = []
    output = run(x)
    remember(output, made[-1])
    return output


def activation(layer: Any, call: Any, codec: Codec, inputs: Any) -> Any:
    """`Activation`: as the function that it applies."""
    return activate(layer.activation, inputs, codec)


def relu_layer(layer: Any, call: Any, codec: Codec, inputs: Any) -> Any:
    """`ReLU`: one bit an element, or the packed input where it has a slope or a limit."""
    if layer.max_value is None and not layer.negative_slope and not layer.threshold:
        return relu(inputs)
    return from_input(call, inputs, codec)


def softmax_layer(layer: Any, call: Any, codec: Codec, inputs: Any, mask: Any = None) -> Any:
    """`Softmax`: keeps the packed output; what is masked has none."""
    axis = list(layer.axis) if isinstance(layer.axis, list | tuple) else layer.axis
    return softmax(lambda x: call(x, mask=mask), inputs, axis, codec)


def from_input_layer(layer: Any, call: Any, codec: Codec, inputs: Any) -> Any:
    """Keeps the packed input."""
    return from_input(call, inputs, codec)


FORMULAS = {
    keras.layers.Activation: activation,
    keras.layers.ReLU: relu_layer,
    keras.layers.Softmax: softmax_layer,
    keras.layers.LeakyReLU: from_input_layer,
    keras.layers.ELU: from_input_layer,
}
