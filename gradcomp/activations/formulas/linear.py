"""Layers whose gradient needs their input alone: products with a kernel, then a bias."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from gradcomp.activations.formulas.elementwise import activate
from gradcomp.activations.replay import replay
from gradcomp.codecs import Codec


def dense(layer: Any, call: Any, codec: Codec, inputs: Any, training: Any = None) -> Any:
    """`Dense`: keeps the packed input."""
    output = replay(ops.matmul, [inputs], [tf.convert_to_tensor(layer.kernel)], codec)
    return _finish(layer, output, codec)


def einsum_dense(layer: Any, call: Any, codec: Codec, inputs: Any, training: Any = None) -> Any:
    """`EinsumDense`: keeps the packed input."""

    def product(x: Any, kernel: Any) -> Any:
        return ops.einsum(layer.equation, x, kernel)

    output = replay(product, [inputs], [tf.convert_to_tensor(layer.kernel)], codec)
    return _finish(layer, output, codec)


def convolution(layer: Any, call: Any, codec: Codec, inputs: Any) -> Any:
    """`Conv1D`, `Conv2D`, `Conv3D`: keeps the packed input."""
    kernel = tf.convert_to_tensor(layer.kernel)
    output = replay(_causal(layer) or layer.convolution_op, [inputs], [kernel], codec)
    if layer.use_bias:
        channels_last = layer.data_format == "channels_last"
        ones = (1,) * layer.rank
        shape = (1, *ones, layer.filters) if channels_last else (1, layer.filters, *ones)
        output = ops.add(output, ops.reshape(layer.bias, shape))
    return activate(layer.activation, output, codec)


def _causal(layer: Any) -> Any:
    """The product of a `Conv1D` that looks back only; None for other layers."""
    if layer.padding != "causal":
        return None

    def product(x: Any, kernel: Any) -> Any:
        padded = ops.pad(x, layer._compute_causal_padding())
        return ops.conv(
            padded,
            kernel,
            strides=list(layer.strides),
            padding="valid",
            dilation_rate=layer.dilation_rate,
            data_format=layer.data_format,
        )

    return product


def _finish(layer: Any, output: Any, codec: Codec) -> Any:
    if layer.bias is not None:
        output = ops.add(output, layer.bias)
    return activate(layer.activation, output, codec)


FORMULAS = {
    keras.layers.Dense: dense,
    keras.layers.EinsumDense: einsum_dense,
    keras.layers.Conv1D: convolution,
    keras.layers.Conv2D: convolution,
    keras.layers.Conv3D: convolution,
}
