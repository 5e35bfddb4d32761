"""Sums of tensors: keep their shapes, and are no reason to compute a summand again for its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from gradcomp.activations.gradient import with_gradient
from gradcomp.activations.mode import not_packing, noted
from gradcomp.codecs import Codec

_Add = keras.layers.Add


def add(layer: Any, call: Any, codec: Codec, inputs: Any) -> Any:
    """`Add`: the shapes alone, where they are not known while a function is traced."""
    if not _alike(inputs) or type(layer)._merge_function is not _Add._merge_function:
        return call(inputs)
    dims, known = noted(lambda: [tf.shape(x) for x in inputs]), inputs[0].shape

    def run(*summands: Any) -> Any:
        with not_packing():
            total = call(list(summands))

        def gradient(dy: Any) -> Any:
            return [tf.ensure_shape(_summed(dy, own), known) for own in dims]

        return total, gradient

    return with_gradient(run, inputs)


def _alike(inputs: Any) -> bool:
    """Whether these are floats of one shape as far as it is known, and not all of it is."""
    if not isinstance(inputs, Sequence) or not all(x.dtype.is_floating for x in inputs):
        return False
    shapes = [x.shape for x in inputs]
    known = all(shape.is_fully_defined() for shape in shapes)
    return not known and all(
        shape.rank is not None and shape.as_list() == shapes[0].as_list() for shape in shapes
    )


def _summed(dy: Any, dims: Any) -> Any:
    """`dy` summed over the dimensions in which a summand of `dims` was repeated."""
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=dims, s1=tf.shape(dy))
    return tf.reshape(tf.reduce_sum(dy, axes), dims)


FORMULAS = {_Add: add}
