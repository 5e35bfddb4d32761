"""What backward can get a tensor again from, remembered on the tensor itself.

A tensor that several layers need is packed once: q, k and v keep one input. One that follows from
something kept already is not packed at all: a normalized tensor, or the output of gelu, from what
its own layer keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradcomp.activations.mode import repeated
from gradcomp.activations.pack import pack, unpack
from gradcomp.codecs import Codec
from gradcomp.errors import ActivationError

# The tensor, once the tensors that it is given are there.
Kept = Callable[[Sequence[Any]], Any]

_ATTRIBUTE = "_gradcomp_kept"


def keep(x: Any, codec: Codec) -> Kept:
    """What `x` is to be had from in backward: what is known already, or its packed bytes.

    Nothing is kept where no backward pass comes, as in the first run of a call that is run again.
    """
    if repeated():
        return _nothing
    known = getattr(x, _ATTRIBUTE, None)
    if known is not None and known[0] is _graph() and known[1] == codec:
        kept: Kept = known[2]
        return kept
    packed = pack(x, codec)

    def kept_bytes(after: Sequence[Any]) -> Any:
        return unpack(packed, after)

    remember(x, codec, kept_bytes)
    return kept_bytes


def remember(x: Any, codec: Codec, kept: Kept) -> None:
    """Notes on `x` that backward can have it from `kept`; for this graph and codec only."""
    if not repeated():
        setattr(x, _ATTRIBUTE, (_graph(), codec, kept))


def _nothing(after: Sequence[Any]) -> Any:
    raise AssertionError("backward of a run that keeps nothing")


def _graph() -> Any:
    """The graph that is being built; None in eager mode."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def first_only(gradient: Any) -> Any:
    """A gradient that can't be differentiated again: what was packed has forgotten its input.

    Raises:
      ActivationError: where a second derivative is taken.
    """

    @tf.custom_gradient
    def same(gradient: Any) -> Any:
        def refuse(_: Any) -> Any:
            raise ActivationError(
                "activations that are packed have first derivatives only: take second ones of a "
                "layer or function without pack_activations"
            )

        return tf.identity(gradient), refuse

    return same(gradient) if tf.is_tensor(gradient) else gradient
