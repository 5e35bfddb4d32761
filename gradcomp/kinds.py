"""The form of a gradient (none, a tensor, or slices), and how ranks with different ones agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradcomp.bucket import VariableSpec

Gradient = Any  # tf.Tensor | tf.IndexedSlices | None

NONE, DENSE, SPARSE = "none", "dense", "sparse"


def kind_of(gradient: Gradient) -> str:
    """NONE, DENSE or SPARSE."""
    if gradient is None:
        return NONE
    return SPARSE if isinstance(gradient, tf.IndexedSlices) else DENSE


def common(kinds: Sequence[str]) -> str:
    """The kind in which all ranks send a variable: sparse only if it is dense on none."""
    present = set(kinds) - {NONE}
    if not present:
        return NONE
    return present.pop() if len(present) == 1 else DENSE


def as_dense(gradient: Gradient, variable: VariableSpec) -> tf.Tensor:
    """A tensor of the variable's shape; zeros for None."""
    if gradient is None:
        return tf.zeros(variable.shape, variable.dtype)
    tensor = tf.convert_to_tensor(gradient)
    return tensor if tensor.shape == variable.shape else tf.ensure_shape(tensor, variable.shape)


def densified(gradients: Sequence[Gradient]) -> list[Gradient]:
    """Tensors in place of `tf.IndexedSlices`."""
    return [tf.convert_to_tensor(g) if kind_of(g) == SPARSE else g for g in gradients]


def as_sparse(gradient: Gradient, variable: VariableSpec) -> tf.IndexedSlices:
    """Slices of the variable: no row for None, every row for a tensor."""
    shape = variable.shape
    if isinstance(gradient, tf.IndexedSlices):
        return gradient
    if gradient is None:
        values, rows = tf.zeros((0, *shape[1:]), variable.dtype), tf.zeros((0,), tf.int64)
    else:
        values, rows = gradient, tf.range(shape[0], dtype=tf.int64)
    return tf.IndexedSlices(values, rows, tf.constant(shape, tf.int64))
