"""Dropout: keeps its seed alone; the same draw on the gradient is the gradient."""

from __future__ import annotations

from typing import Any

import keras

from gradcomp.activations.recompute import layer_call, recompute
from gradcomp.codecs import Codec


def dropout(layer: Any, call: Any, codec: Codec, inputs: Any, training: Any = False) -> Any:
    """`Dropout`, `SpatialDropout*`, `GaussianDropout`: linear, once what they draw is drawn."""
    if not training or not layer.rate:
        return call(inputs, training=training)
    return recompute(layer_call(layer, call), None, (inputs,), {"training": training})


def noise(layer: Any, call: Any, codec: Codec, inputs: Any, training: Any = False) -> Any:
    """`GaussianNoise`: a sum, whose gradient needs nothing."""
    return call(inputs, training=training)


FORMULAS = {
    keras.layers.Dropout: dropout,
    keras.layers.SpatialDropout1D: dropout,
    keras.layers.SpatialDropout2D: dropout,
    keras.layers.SpatialDropout3D: dropout,
    keras.layers.GaussianDropout: dropout,
    keras.layers.GaussianNoise: noise,
}
