"""Whether a reducer may still exchange, as far as steps know that were compiled with it."""

from __future__ import annotations

import tensorflow as tf

from gradcomp import kernels
from gradcomp.kinds import Gradient
from gradcomp.slots import slot
from gradcomp.xla import for_xla

_RETIRED = (
    "this step was compiled for the ranks that there were before workers came or went. Compile it "
    "anew: call tf.function(step) inside the function that hvd.elastic.run decorates, or, for a "
    "Keras model, model.make_train_function(force=True)"
)


class Service:
    """Lasts until `end`."""

    def __init__(self) -> None:
        self.ended = False
        with tf.device("/CPU:0"):
            self._number = slot("0", "service")

    def end(self) -> None:
        """Lets `guard` fail from now on."""
        self.ended = True
        self._number.assign(_RETIRED)

    def guard(self, gradient: Gradient) -> Gradient:
        """The same gradient; an error when it is needed after the end, before it is sent.

        Raises:
          tf.errors.InvalidArgumentError: the service has ended; here, or when the step runs.
        """
        if isinstance(gradient, tf.IndexedSlices):
            values = self.guard(gradient.values)
            if values is gradient.values:
                return gradient
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        # XLA compiles the steps of a single rank only, which has nobody to send anything.
        if gradient is None or for_xla():
            return gradient
        if tf.executing_eagerly():
            if self.ended:
                raise tf.errors.InvalidArgumentError(None, None, _RETIRED)
            return gradient
        # Neither an assertion nor a control dependency: TensorFlow runs operations that have a
        # state, as an assertion does, after every py_function of the backward pass, so that no
        # exchange would overlap with it; and it drops those without one whose value nobody needs.
        with tf.device("/CPU:0"):
            zero = tf.cast(tf.strings.to_number(self._number.read_value()), tf.int32)
        with kernels.beside([gradient]):
            same = tf.reshape(gradient, tf.shape(gradient) + zero)
        same.set_shape(gradient.shape)
        return same
