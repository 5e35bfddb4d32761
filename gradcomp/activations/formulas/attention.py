"""Attention: keeps q, k and v packed, and a bit for each probability that dropout kept.

The probabilities, of which there are as many as of all else together, follow from q and k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from tensorflow.python.eager import record

from gradcomp.activations.formulas.dropout import draw, drop, keeps_bits
from gradcomp.activations.gradient import with_gradient
from gradcomp.activations.keep import first_only, keep
from gradcomp.activations.mode import not_packing, plain
from gradcomp.activations.pack import gate
from gradcomp.activations.recompute import Scope, read
from gradcomp.codecs import Codec

# A tensor after dropout.
Drop = Callable[[Any], Any]


def attention(
    layer: Any,
    call: Any,
    codec: Codec,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    training: Any = None,
    return_attention_scores: bool = False,
    use_causal_mask: bool = False,
) -> Any:
    """`MultiHeadAttention._compute_attention`, what lies between the projections."""
    if return_attention_scores or layer._flash_attention:
        causal = {"use_causal_mask": True} if use_causal_mask else {}
        return call(query, key, value, attention_mask, training, return_attention_scores, **causal)
    if use_causal_mask:
        causal_mask = layer._compute_causal_mask(query, value)
        attention_mask = (
            causal_mask if attention_mask is None else ops.logical_and(attention_mask, causal_mask)
        )
    return _Attention(layer, codec, attention_mask, training).run(query, key, value), None


class _Attention:
    def __init__(self, layer: Any, codec: Codec, mask: Any, training: Any) -> None:
        self._layer, self._codec, self._mask = layer, codec, mask
        drops = training and layer._dropout > 0
        self._seed = layer._dropout_layer.seed_generator.state if drops else None

    def run(self, query: Any, key: Any, value: Any) -> Any:
        """The context of each query."""
        inputs = (query, key, value)
        kept = [keep(x, self._codec) for x in inputs]
        # Whatever the result depends on must be an argument, or TensorFlow looks for variables.
        mask = [] if self._mask is None else [self._mask]
        seed = [] if self._seed is None else [read(self._seed)]

        def attend(query: Any, key: Any, value: Any, *rest: Any) -> Any:
            with not_packing():
                p = self._probabilities(query, key, rest[: len(mask)])
            with record.stop_recording():
                dropout, after = self._dropout(p, rest[len(mask) :])
            with not_packing():
                context = self._combine(dropout(p), value)

            def gradient(upstream: Any, *_: Any) -> Any:
                q, k, v = [get([upstream]) for get in kept]
                with gate([upstream]):
                    p = self._probabilities(q, k, rest[: len(mask)])
                    gradients = self._gradients(q, k, v, p, dropout, upstream)
                return [*map(first_only, gradients), *nothing]

            nothing = [None] * len(rest)
            return (context, *after), gradient

        context, *after = with_gradient(attend, inputs, [*mask, *seed])
        if self._seed is not None:
            self._seed.assign(after[0])
        return context

    def _scores(self, query: Any, key: Any) -> Any:
        scale = ops.cast(self._layer._inverse_sqrt_key_dim, query.dtype)
        return ops.einsum(self._layer._dot_product_equation, key, ops.multiply(query, scale))

    def _probabilities(self, query: Any, key: Any, mask: Any) -> Any:
        return self._layer._masked_softmax(self._scores(query, key), *mask)

    def _combine(self, probabilities: Any, value: Any) -> Any:
        return ops.einsum(self._layer._combine_equation, probabilities, value)

    def _dropout(self, p: Any, seed: Any) -> tuple[Drop, list[Any]]:
        """The dropout of tensors like `p` that `seed` stands for, and the seeds that come next."""
        if self._seed is None:
            return lambda x: x, []
        layer = self._layer._dropout_layer

        def with_seed(run: Callable[[], Any]) -> tuple[Any, Any]:
            with Scope([(self._seed, *seed)]) as scope:
                return run(), scope.get_current_value(self._seed)

        def drop_again(x: Any) -> Any:
            with plain():
                return with_seed(lambda: layer(x, training=True))[0]

        if not keeps_bits(layer.rate, p.dtype):
            return drop_again, [with_seed(layer.seed_generator.next)[1]]
        mask, after = with_seed(lambda: draw(layer, p))
        return lambda x: drop(x, mask, layer.rate), [after]

    def _gradients(self, q: Any, k: Any, v: Any, p: Any, dropout: Drop, upstream: Any) -> list[Any]:
        dropped = dropout(p)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([dropped, v])
            context = self._combine(dropped, v)
        dv = tape.gradient(context, v, upstream)
        # One after the other, as tensors of the size of p are most of what is worked on here.
        with gate([dv]):
            d_dropped = tape.gradient(context, dropped, upstream)
        dp = dropout(d_dropped)
        axes = list(self._layer._softmax.axis)
        d_scores = p * (dp - tf.reduce_sum(dp * p, axes, keepdims=True))
        with tf.GradientTape() as tape:
            tape.watch([q, k])
            scores = self._scores(q, k)
        dq, dk = tape.gradient(scores, [q, k], d_scores)
        return [dq, dk, dv]


ATTENTION = keras.layers.MultiHeadAttention
