"""Activation functions: what each needs in backward, and no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import activations
from tensorflow.python.eager import record

from gradcomp.activations.gradient import with_gradient
from gradcomp.activations.keep import Kept, first_only, keep, remember
from gradcomp.activations.masks import code_width, pack_codes, unpack_codes
from gradcomp.activations.mode import not_packing, noted
from gradcomp.activations.pack import gate
from gradcomp.activations.replay import replay_kept
from gradcomp.codecs import Codec
from gradcomp.xla import for_xla

# Their gradient follows from what they return.
_FROM_OUTPUT: dict[Any, Callable[..., Any]] = {
    activations.sigmoid: tf.raw_ops.SigmoidGrad,
    activations.tanh: tf.raw_ops.TanhGrad,
}
# Computed again from their packed input, which stands for their output too. Of softmax, small
# outputs would be lost where those were packed.
_FROM_INPUT = (
    activations.celu,
    activations.elu,
    activations.exponential,
    activations.gelu,
    activations.hard_sigmoid,
    activations.hard_silu,
    activations.log_softmax,
    activations.mish,
    activations.selu,
    activations.silu,
    activations.softmax,
    activations.softplus,
    activations.softsign,
)
# Straight pieces, whose slopes are all that backward needs: a kink does not bear rounding. By (x,
# y), where the slope is 1, and what it is elsewhere.
_PIECES: dict[Any, tuple[Callable[[Any, Any], Any], float]] = {
    activations.relu: (lambda x, y: y > 0, 0.0),
    activations.relu6: (lambda x, y: (y > 0) & (y < 6), 0.0),
    activations.leaky_relu: (lambda x, y: x > 0, 0.2),
}


def _gelu(x: Any) -> Any:
    # Keras's own has erfc, which is exact to the last bit far left of 0 and takes three times as
    # long as erf.
    return x * (0.5 + 0.5 * tf.math.erf(x * 0.5**0.5))


def _gelu_slope(x: Any) -> Any:
    # In two buffers, where a tape over its primitives takes four: of all a block works on in
    # backward these are the largest.
    density = tf.exp(-0.5 * tf.square(x)) * (2 * math.pi) ** -0.5
    return 0.5 + 0.5 * tf.math.erf(x * 0.5**0.5) + x * density


# The same up to 1e-7 and faster: enough for what has lost bits.
_FASTER: dict[Any, Callable[[Any], Any]] = {activations.gelu: _gelu}
_SLOPES: dict[Any, Callable[[Any], Any]] = {activations.gelu: _gelu_slope}


def activate(function: Any, x: Any, codec: Codec) -> Any:
    """`function(x)` of an activation function, with as little kept as it needs.

    One that is not Keras's own is called as it is: what it keeps is not known.
    """
    if function is None or function is activations.linear:
        return x
    if function in _PIECES:
        inside, slope = _PIECES[function]
        return pieces(function, x, inside, [slope, 1.0])
    if function in _FROM_OUTPUT:
        output = _from_output(function, _FROM_OUTPUT[function], x, codec)
    elif function in _FROM_INPUT:
        output = from_input(function, x, codec)
    else:
        return function(x)
    if function in (activations.sigmoid, activations.softmax):
        output._keras_logits = x  # as Keras's own: cross-entropies are computed from these
    return output


def from_input(function: Callable[[Any], Any], x: Any, codec: Codec) -> Any:
    """Keeps the packed input; backward computes the function, and its output, from that."""
    kept = keep(x, codec)
    second = function if codec.lossless else _FASTER.get(function, function)
    # XLA fuses primitives itself; with the formula it would keep more.
    if function in _SLOPES and not for_xla():
        output = _sloped_by(_SLOPES[function], function, x, kept)
    else:
        output = replay_kept(function, [x], [kept], [], second)

    def again(after: Sequence[Any]) -> Any:
        return second(kept(after))

    remember(output, codec, again)
    return output


def _sloped_by(
    slope: Callable[[Any], Any], function: Callable[..., Any], x: Any, kept: Kept
) -> Any:
    def run(x: Any) -> Any:
        with not_packing():
            y = function(x)

        def gradient(dy: Any) -> Any:
            again = kept([dy])
            with gate([dy]):
                return first_only(dy * slope(again))

        return y, gradient

    return with_gradient(run, [x])


def pieces(
    function: Callable[[Any], Any],
    x: Any,
    piece: Callable[[Any, Any], Any],
    slopes: Sequence[float],
) -> Any:
    """Keeps on which piece an element is, by its number or a mask: one or two bits.

    A second run has them from the first: near a kink it finds others, as its input was rounded.

    Args:
      function: of x.
      x: float tensor.
      piece: of x and y, the piece of each element: bool for two of them, else uint8.
      slopes: of the pieces; False is the first of two.
    """

    def run(x: Any) -> Any:
        with not_packing():
            y = function(x)
        packed = noted(lambda: pack_codes(piece(x, y), code_width(len(slopes))))

        def gradient(dy: Any) -> Any:
            return _sloped(dy, unpack_codes(packed, [dy]), slopes)

        return y, gradient

    return with_gradient(run, [x])


def _sloped(dy: Any, codes: Any, slopes: Sequence[float]) -> Any:
    """`dy` times each element's slope."""
    dx = dy * tf.cast(slopes[0], dy.dtype) if slopes[0] else tf.zeros_like(dy)
    for i, slope in enumerate(slopes[1:]):
        here = codes if codes.dtype == tf.bool else tf.equal(codes, i + 1)
        dx = tf.where(here, dy if slope == 1 else dy * tf.cast(slope, dy.dtype), dx)
    return dx


def _from_output(
    function: Callable[[Any], Any], formula: Callable[..., Any], x: Any, codec: Codec
) -> Any:
    """Keeps the packed output."""

    def run(x: Any) -> Any:
        with not_packing():
            y = function(x)
        with record.stop_recording():
            kept = keep(y, codec)
        made.append(kept)
        return y, lambda dy: first_only(formula(y=kept([dy]), dy=dy))

    made: list[Any] = []
    output = with_gradient(run, [x])
    remember(output, codec, made[-1])
    return output


def activation(layer: Any, call: Any, codec: Codec, inputs: Any) -> Any:
    """`Activation`: as the function that it applies."""
    return activate(layer.activation, inputs, codec)


def relu_layer(layer: Any, call: Any, codec: Codec, inputs: Any) -> Any:
    """`ReLU`, `LeakyReLU`: one bit an element, or two where there are three slopes."""
    slope, threshold = float(layer.negative_slope), float(getattr(layer, "threshold", 0))
    limit = getattr(layer, "max_value", None)
    if limit is None:
        return pieces(call, inputs, lambda x, y: x > threshold, [slope, 1.0])

    def piece(x: Any, y: Any) -> Any:
        return tf.cast(x > threshold, tf.uint8) + tf.cast(x >= limit, tf.uint8)

    return pieces(call, inputs, piece, [slope, 1.0, 0.0])


def from_input_layer(layer: Any, call: Any, codec: Codec, inputs: Any) -> Any:
    """Keeps the packed input."""
    return from_input(call, inputs, codec)


FORMULAS = {
    keras.layers.Activation: activation,
    keras.layers.ReLU: relu_layer,
    keras.layers.LeakyReLU: relu_layer,
    keras.layers.ELU: from_input_layer,
}
