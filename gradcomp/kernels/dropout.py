"""Dropout by a mask of a bit an element, by the ops in `_ops.so`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcomp.kernels.gpu import beside
from gradcomp.kernels.libraries import import_tensorflow, load_ops

# The dtypes that have masks.
MASKED = ("float32", "float16", "bfloat16")
# Bits of a uniform number in [0, 1), as TensorFlow draws one of each dtype.
_FRACTION_BITS = {"float32": 23, "float16": 10, "bfloat16": 7}


def draw_mask(seed: Any, x: Any, rate: float) -> Any:
    """uint8 [⌈n/8⌉]: a bit for each of the n elements of `x`, set if dropout keeps it.

    Those that `tf.nn.experimental.stateless_dropout` keeps on a CPU and on a GPU: Philox4x32-10
    (Salmon et al., SC 2011), and no tensor of random numbers.

    Args:
      seed: int32 or int64 [2].
      x: float32, float16 or bfloat16, of any shape.
      rate: of the elements that go, in [0, 1].
    """
    tf, ops = import_tensorflow(), load_ops()
    bits = _FRACTION_BITS[x.dtype.name]
    rounded = float(np.asarray(rate, x.dtype.as_numpy_dtype))
    threshold = math.ceil(rounded * 2**bits)
    with beside([x]):
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
        packed = ops.gradcomp_draw_mask(
            key=key,
            counter=counter,
            dims=tf.shape(x, tf.int64),
            fraction_bits=bits,
            threshold=threshold,
        )
        numel = x.shape.num_elements()
        return packed if numel is None else tf.ensure_shape(packed, [-(-numel // 8)])


def apply_mask(x: Any, packed: Any, scale: float) -> Any:
    """`x` times `scale` where its bit is set, else 0, whatever it was.

    Args:
      x: float32, float16 or bfloat16, n elements of any shape.
      packed: uint8 [⌈n/8⌉], as of `draw_mask` or `pack_bits`.
      scale: rounded to the dtype of `x`, as the product is.
    """
    tf, ops = import_tensorflow(), load_ops()
    rounded = float(np.asarray(scale, x.dtype.as_numpy_dtype))
    with beside([x]):
        return tf.ensure_shape(ops.gradcomp_apply_mask(x=x, packed=packed, scale=rounded), x.shape)
