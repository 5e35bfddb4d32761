"""Functions without state that backward computes again from packed inputs.

In a graph only what the gradient needs is computed: of a matrix product, nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradcomp.activations.gradient import here, with_gradient
from gradcomp.activations.keep import Kept, first_only, keep
from gradcomp.activations.mode import not_packing
from gradcomp.activations.pack import gate
from gradcomp.codecs import Codec


def replay(
    function: Callable[..., Any], inputs: Sequence[Any], weights: Sequence[Any], codec: Codec
) -> Any:
    """`function(*inputs, *weights)`, one tensor, whose backward has the inputs from packed bytes.

    Args:
      function: of tensors alone; draws no random numbers and reads no variables.
      inputs: tensors; float ones are packed, unless they follow from something kept already.
      weights: tensors that live on anyway.
    """
    return replay_kept(function, inputs, [keep(x, codec) for x in inputs], weights)


def replay_kept(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    kept: Sequence[Kept],
    weights: Sequence[Any],
    again: Callable[..., Any] | None = None,
) -> Any:
    """As `replay`, of inputs that are kept already.

    Args:
      again: what backward computes, if it is not `function` itself.
    """
    second = again or function

    def run(*args: Any) -> Any:
        with not_packing():
            output = function(*args)
        given = args[len(kept) :]

        def gradient(upstream: Any) -> Any:
            with gate([upstream]):
                inputs, weights = [get([upstream]) for get in kept], [here(x) for x in given]
                with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
                    tape.watch([*inputs, *weights])
                    result = second(*inputs, *weights)
                of_weights = tape.gradient(result, weights, upstream)
                # One after the other: the inputs are gone before the layer below is computed on.
                with gate(of_weights):
                    of_inputs = tape.gradient(result, inputs, upstream)
            return [first_only(gradient) for gradient in (*of_inputs, *of_weights)]

        return output, gradient

    return with_gradient(run, inputs, weights)
