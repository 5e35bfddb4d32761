"""Dropout: keeps one bit an element, or the seed where there are fewer draws than elements."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gradcomp.activations.gradient import with_gradient
from gradcomp.activations.mode import noted
from gradcomp.activations.pack import gate
from gradcomp.activations.recompute import layer_call, recompute
from gradcomp.codecs import Codec
from gradcomp.kernels.dropout import MASKED, apply_mask, draw_mask
from gradcomp.xla import for_xla


def dropout(layer: Any, call: Any, codec: Codec, inputs: Any, training: Any = False) -> Any:
    """`Dropout`: one bit an element, as random numbers cost more to draw again than to keep."""
    if not training or not layer.rate:
        return call(inputs, training=training)
    if not keeps_bits(layer.rate, inputs.dtype) or layer.noise_shape is not None:
        return again(layer, call, codec, inputs, training)
    mask = draw(layer, inputs)

    def run(x: Any, mask: Any) -> Any:
        def gradient(dy: Any) -> Any:
            with gate([dy]):
                return drop(dy, mask, layer.rate), None

        return drop(x, mask, layer.rate), gradient

    return with_gradient(run, [inputs], [mask])


def keeps_bits(rate: float, dtype: Any) -> bool:
    """Whether bits are kept: XLA has no kernel for them, and draws fast."""
    return rate < 1 and dtype.name in MASKED and not for_xla()


def draw(layer: Any, x: Any) -> Any:
    """uint8, a bit for each element of `x`, set where it lives: those that Keras lets live.

    A second run has those of the first, and the layer's seeds go on as in that.
    """
    seed = layer.seed_generator.next()
    return noted(lambda: draw_mask(_int32(seed), x, layer.rate))


def drop(x: Any, mask: Any, rate: float) -> Any:
    """What lives of `x`, scaled."""
    return apply_mask(x, mask, 1 / (1 - rate))


def _int32(seed: Any) -> Any:
    """As Keras gives seeds to TensorFlow, which has no place for others on a GPU."""
    return seed if seed.dtype == tf.int32 else tf.cast(seed % (tf.int32.max - 1), tf.int32)


def again(layer: Any, call: Any, codec: Codec, inputs: Any, training: Any = False) -> Any:
    """`SpatialDropout*`, `GaussianDropout`: the seed, whose draw on the gradient is one."""
    if not training or not layer.rate:
        return call(inputs, training=training)
    return recompute(layer_call(layer, call), None, (inputs,), {"training": training})


def noise(layer: Any, call: Any, codec: Codec, inputs: Any, training: Any = False) -> Any:
    """`GaussianNoise`: a sum, whose gradient needs nothing."""
    return call(inputs, training=training)


FORMULAS = {
    keras.layers.Dropout: dropout,
    keras.layers.SpatialDropout1D: again,
    keras.layers.SpatialDropout2D: again,
    keras.layers.SpatialDropout3D: again,
    keras.layers.GaussianDropout: again,
    keras.layers.GaussianNoise: noise,
}
