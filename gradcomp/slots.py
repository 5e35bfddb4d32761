"""Variables that a reducer keeps its state in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf


def slot(value: Any, name: str, dtype: tf.DType | None = None) -> tf.Variable:
    """A variable that is no weight, with its value at once.

    Make it outside of graphs (`tf.init_scope`). Even there TensorFlow would lift it out of the step
    that is being traced, and trace all of it a second time, since the first created a variable.
    """
    import tensorflow as tf

    return tf.Variable(
        value,
        trainable=False,
        dtype=dtype,
        name=name,
        experimental_enable_variable_lifting=False,
    )
