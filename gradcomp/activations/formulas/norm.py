"""Layer normalization: keeps the normalized tensor, from which its output follows too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from tensorflow.python.eager import record

from gradcomp.activations.gradient import with_gradient
from gradcomp.activations.keep import first_only, keep, remember
from gradcomp.activations.mode import not_packing
from gradcomp.activations.pack import to_nearest
from gradcomp.activations.recompute import layer_call, recompute, to_the_bit
from gradcomp.codecs import Codec


def layer_normalization(layer: Any, call: Any, codec: Codec, inputs: Any) -> Any:
    """`LayerNormalization`: keeps x̂ packed, and 1/σ of each row."""
    if layer.rms_scaling:
        return recompute(layer_call(layer, call), codec, (inputs,), {})
    return _Normalization(layer, codec, inputs).run()


class _Normalization:
    def __init__(self, layer: Any, codec: Codec, inputs: Any) -> None:
        self._layer, self._codec, self._inputs = layer, codec, inputs
        rank = inputs.shape.rank
        self._axes = [axis % rank for axis in layer.axis]
        self._shape = [inputs.shape[i] if i in self._axes else 1 for i in range(rank)]
        self._rest = [axis for axis in range(rank) if axis not in self._axes]

    def run(self) -> Any:
        """The normalized, scaled and shifted tensor."""
        layer, dtype, kept_normal = self._layer, self._inputs.dtype, []
        present = [v is not None for v in (layer.gamma, layer.beta)]

        def normalize(x: Any, *weights: Any) -> Any:
            gamma, beta = self._both(present, weights)
            with not_packing():
                wide = tf.cast(x, tf.float32)
                mean, variance = ops.moments(wide, self._axes, keepdims=True)
                inverse = tf.math.rsqrt(variance + layer.epsilon)
                normal = (wide - mean) * inverse
                if to_the_bit(self._codec):
                    y = ops.layer_normalization(x, gamma, beta, layer.axis, layer.epsilon)
                else:  # in two passes over what is there, where Keras takes seven
                    y = self._scaled(normal, gamma, beta)
            with record.stop_recording():
                # Of mean 0 in every row: rounding at random would only add noise.
                kept = keep(normal, to_nearest(self._codec))
            kept_normal.append(kept)

            def gradient(upstream: Any) -> Any:
                normal, dy = kept([upstream]), tf.cast(upstream, tf.float32)
                dx = self._dx(normal, dy if gamma is None else dy * self._wide(gamma), inverse)
                d_weights = [tf.reduce_sum(dy * normal, self._rest), tf.reduce_sum(dy, self._rest)]
                wanted = [d for d, there in zip(d_weights, present, strict=True) if there]
                return [first_only(d) for d in (tf.cast(dx, dtype), *wanted)]

            return ops.cast(y, layer.compute_dtype), gradient

        weights = [
            tf.convert_to_tensor(v.value) for v in (layer.gamma, layer.beta) if v is not None
        ]
        output = with_gradient(normalize, [self._inputs], weights)
        gamma, beta = self._both(present, weights)

        def again(after: Sequence[Any]) -> Any:
            return tf.cast(self._scaled(kept_normal[-1](after), gamma, beta), output.dtype)

        remember(output, self._codec, again)
        return output

    @staticmethod
    def _both(present: list[bool], weights: Sequence[Any]) -> list[Any]:
        left = iter(weights)
        return [next(left) if there else None for there in present]

    def _scaled(self, normal: Any, gamma: Any, beta: Any) -> Any:
        y = normal if gamma is None else normal * self._wide(gamma)
        return y if beta is None else y + self._wide(beta)

    def _wide(self, weight: Any) -> Any:
        return tf.reshape(tf.cast(weight, tf.float32), self._shape)

    def _dx(self, normal: Any, d_normal: Any, inverse: Any) -> Any:
        """Of x̂ = (x − mean)·inverse: what is along the mean and along x̂ itself drops out."""
        mean = tf.reduce_mean(d_normal, self._axes, keepdims=True)
        along = tf.reduce_mean(d_normal * normal, self._axes, keepdims=True)
        return inverse * (d_normal - mean - normal * along)


FORMULAS = {keras.layers.LayerNormalization: layer_normalization}
