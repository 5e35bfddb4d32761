"""What backward can get a tensor again from, remembered on the tensor itself.

A tensor that several layers need is packed once: q, k and v keep one input. One that follows from
something kept already is not packed at all: a normalized tensor, or the output of gelu, from what
its own layer keeps.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from gradcomp.activations.pack import pack, unpack
from gradcomp.codecs import Codec
from gradcomp.errors import ActivationError

# The tensor, once the tensors that it is given are there.
Kept = Callable[[Sequence[Any]], Any]

_ATTRIBUTE = "_gradcomp_kept"
_state = threading.local()


def keep(x: Any, codec: Codec) -> Kept:
    """What `x` is to be had from in backward: what is known already, or its packed bytes."""
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
    setattr(x, _ATTRIBUTE, (_graph(), codec, kept))


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


def packing() -> bool:
    """Whether there is any use in packing: a backward pass may come, and nobody recomputes."""
    return not getattr(_state, "off", False) and (
        not tf.executing_eagerly() or bool(record.could_possibly_record())
    )


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Where layers compute as if they had never been told to pack."""
    before, _state.off = getattr(_state, "off", False), True
    try:
        yield
    finally:
        _state.off = before


@contextlib.contextmanager
def not_packing() -> Iterator[None]:
    """Where a forward pass will be computed again: it keeps nothing, and records nothing."""
    with plain(), record.stop_recording():
        yield
