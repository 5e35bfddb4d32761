"""Pooling: a maximum needs its position in the window, an average nothing."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gradcomp.activations.gradient import with_gradient
from gradcomp.activations.masks import PackedCodes, code_width, pack_codes, unpack_codes
from gradcomp.activations.mode import not_packing, noted
from gradcomp.activations.replay import replay
from gradcomp.codecs import Codec
from gradcomp.xla import for_xla


def average(layer: Any, call: Any, codec: Codec, inputs: Any) -> Any:
    """`AveragePooling*`: linear; only the input's shape is kept."""
    dims, dtype = tf.shape(inputs), inputs.dtype

    def run(x: Any) -> Any:
        with not_packing():
            y = call(x)

        def gradient(dy: Any) -> Any:
            with tf.control_dependencies([dy]):
                # Where there is nothing to read, any tensor of the shape will do.
                x = tf.zeros(dims, dtype)
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(x)
                    y = call(x)
                return tape.gradient(y, x, dy)

        return y, gradient

    return with_gradient(run, [inputs])


def maximum(layer: Any, call: Any, codec: Codec, inputs: Any) -> Any:
    """`MaxPooling1D`, `MaxPooling2D`: one code of few bits for each output; others the input."""
    window, strides = [*layer.pool_size], [*layer.strides]
    count = window[0] * window[-1]
    known = layer.data_format == "channels_last" and len(window) < 3 and not for_xla()
    if not known or not code_width(count) or None in inputs.shape[1:]:
        return replay(call, [inputs], [], codec)
    if len(window) == 1:
        pool = _MaxPool([1, *window], [1, *strides], layer.padding)
        return tf.squeeze(pool.run(tf.expand_dims(inputs, 1)), 1)
    return _MaxPool(window, strides, layer.padding).run(inputs)


class _MaxPool:
    """Maxima of windows of [B, H, W, C], with places as TensorFlow counts them: within a sample."""

    def __init__(self, window: list[int], strides: list[int], padding: str) -> None:
        self._window, self._strides, self._padding = window, strides, padding.upper()
        self._bits = code_width(window[0] * window[1])

    def run(self, inputs: Any) -> Any:
        """float [B, h, w, C]; of equal maxima the first has the gradient."""
        height, width, channels = inputs.shape[1:]
        dims = tf.shape(inputs, tf.int64)

        def pool(x: Any) -> Any:
            with not_packing():
                y, places = tf.nn.max_pool_with_argmax(
                    x, self._window, self._strides, self._padding, output_dtype=tf.int64
                )
                origin = self._origins(y.shape[1:3], (height, width))

            def in_window() -> PackedCodes:
                row, column = places // (width * channels), places // channels % width
                code = (row - origin[0]) * self._window[1] + column - origin[1]
                return pack_codes(tf.cast(code, tf.uint8), self._bits)

            packed = noted(in_window)

            def gradient(dy: Any) -> Any:
                code = tf.cast(unpack_codes(packed, [dy]), tf.int64)
                row = code // self._window[1] + origin[0]
                column = code % self._window[1] + origin[1]
                channel = tf.range(channels, dtype=tf.int64)
                sample = tf.reshape(tf.range(dims[0]), [-1, 1, 1, 1])
                places = ((sample * height + row) * width + column) * channels + channel
                flat = tf.math.unsorted_segment_sum(
                    tf.reshape(dy, [-1]), tf.reshape(places, [-1]), tf.reduce_prod(dims)
                )
                return tf.reshape(flat, dims)

            return y, gradient

        return with_gradient(pool, [inputs])

    def _origins(self, outputs: Any, inputs: tuple[int, int]) -> list[Any]:
        """Rows [h, 1, 1] and columns [w, 1] where windows begin, before the first with padding."""
        begins = []
        sizes = zip(outputs, inputs, self._window, self._strides, strict=True)
        for count, size, window, stride in sizes:
            padding = max((count - 1) * stride + window - size, 0) // 2
            before = padding if self._padding == "SAME" else 0
            begins.append(tf.range(count, dtype=tf.int64) * stride - before)
        return [tf.reshape(begins[0], [-1, 1, 1]), tf.reshape(begins[1], [-1, 1])]


_layers = keras.layers
FORMULAS = {
    _layers.AveragePooling1D: average,
    _layers.AveragePooling2D: average,
    _layers.AveragePooling3D: average,
    _layers.MaxPooling1D: maximum,
    _layers.MaxPooling2D: maximum,
    _layers.MaxPooling3D: maximum,
}
