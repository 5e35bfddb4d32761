"""Dropout: keeps one bit an element, or the seed where there are fewer draws than elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from gradcomp.activations.gradient import with_gradient
from gradcomp.activations.masks import PackedCodes, pack_codes, unpack_codes
from gradcomp.activations.mode import noted
from gradcomp.activations.recompute import layer_call, recompute
from gradcomp.codecs import Codec
from gradcomp.xla import for_xla


def dropout(layer: Any, call: Any, codec: Codec, inputs: Any, training: Any = False) -> Any:
    """`Dropout`: one bit an element, as random numbers cost more to draw again than to keep."""
    if not training or not layer.rate:
        return call(inputs, training=training)
    if not keeps_bits(layer.rate) or layer.noise_shape is not None:
        return again(layer, call, codec, inputs, training)
    kept, packed = draw(layer, call, inputs)

    def run(x: Any, kept: Any) -> Any:
        def gradient(dy: Any) -> Any:
            return drop(dy, unpack_codes(packed, [dy]), layer.rate), None

        return drop(x, kept, layer.rate), gradient

    return with_gradient(run, [inputs], [kept])


def keeps_bits(rate: float) -> bool:
    """Whether bits are kept: XLA has no kernel for them, and draws fast."""
    return rate < 1 and not for_xla()


def draw(layer: Any, call: Callable[..., Any], x: Any) -> tuple[Any, PackedCodes]:
    """bool, which elements of a tensor like `x` live, and what is kept of them.

    A second run has those of the first, and the layer's seeds go on as in that.
    """
    made: list[Any] = []

    def drawn() -> PackedCodes:
        made.append(tf.not_equal(call(tf.ones_like(x), training=True), 0))
        return pack_codes(made[0], 1)

    packed = noted(drawn)
    if made:
        return made[0], packed
    layer.seed_generator.next()
    return unpack_codes(packed), packed


def drop(x: Any, kept: Any, rate: float) -> Any:
    """What is kept of `x`, scaled; as Keras computes it."""
    return tf.where(kept, x, tf.zeros([], x.dtype)) * tf.constant(1 / (1 - rate), x.dtype)


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
