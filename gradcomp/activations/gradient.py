"""Functions with a gradient of their own, which keep nothing but what that gradient keeps.

In a graph, `tf.custom_gradient` passes its arguments on beside the results, and TensorFlow makes
zeros like each of these copies, as it knows no gradient of theirs. Where forward is a function of
its own and the tape is outside of it, that alone keeps every argument until backward. So here
activations are passed as integers, of which no gradient is asked for, and a link of one element
leads theirs back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from gradcomp.activations.mode import repeated

_NAME = "GradcompLink"
_BITS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}
_registered = False


def with_gradient(
    function: Callable[..., Any], inputs: Sequence[Any], others: Sequence[Any] = ()
) -> Any:
    """`function(*inputs, *others)[0]`, with the gradient that it returns second.

    Args:
      function: gives results and a function of their gradients, as for `tf.custom_gradient`. It
        depends on no other tensors of the graph.
      inputs: activations, which are not to be kept for the function's sake.
      others: what lives on anyway: weights, states.
    """
    if repeated():
        return function(*inputs, *others)[0]
    if tf.executing_eagerly():
        return tf.custom_gradient(function)(*inputs, *others)
    linked = [i for i, x in enumerate(inputs) if x.dtype.is_floating]
    links = [_link(inputs[i]) for i in linked]
    count = len(links)
    passed = [_as_bits(x) for x in inputs]

    @tf.custom_gradient
    def run(*args: Any) -> Any:
        again = [_as_floats(x, like) for x, like in zip(args[count:], inputs, strict=False)]
        results, gradient = function(*again, *args[count + len(inputs) :])

        def of_links(*upstream: Any, variables: Sequence[Any] = ()) -> Any:
            if variables:
                gradients, of_variables = gradient(*upstream, variables=variables)
            else:
                gradients = gradient(*upstream)
            gradients = gradients if isinstance(gradients, list | tuple) else [gradients]
            led = [gradients[i] for i in linked]
            made = [*led, *[None] * len(inputs), *gradients[len(inputs) :]]
            return (made, of_variables) if variables else made

        return results, of_links

    return run(*links, *passed, *others)


def here(x: Any) -> Any:
    """`x` as a tensor of the graph that is built.

    What a loop hands on to its gradient has another name there, under which a tape that watches
    `x` would not know it.
    """
    if not tf.is_tensor(x) or not x.dtype.is_floating or tf.executing_eagerly():
        return x
    inside = getattr(x, "graph", None) is tf.compat.v1.get_default_graph()
    return x if inside else tf.identity(x)


def _as_bits(x: Any) -> Any:
    return tf.bitcast(x, _BITS[x.dtype.size]) if x.dtype.is_floating else x


def _as_floats(x: Any, like: Any) -> Any:
    if not like.dtype.is_floating:
        return x
    x = tf.bitcast(x, like.dtype)
    if getattr(like, "_keras_mask", None) is not None:
        x._keras_mask = like._keras_mask
    return x


def _link(x: Any) -> Any:
    """A tensor of one element of `x`, of the same rank, whose gradient is that of `x`."""
    _register()
    graph = tf.compat.v1.get_default_graph()
    with record.stop_recording(), graph.gradient_override_map({"Slice": _NAME}):
        shape = tf.shape(x)
        # A shape that TensorFlow knew would be demanded of the gradient too.
        size = tf.compat.v1.placeholder_with_default(tf.minimum(shape, 1), shape.shape)
        link = tf.slice(x, tf.zeros_like(shape), size)
    record.record_operation(_NAME, [link], [x], lambda upstream: [upstream])
    return link


def _through(op: Any, upstream: Any) -> list[Any]:
    return [upstream, None, None]


def _register() -> None:
    global _registered
    if not _registered:
        tf.RegisterGradient(_NAME)(_through)
        _registered = True
