"""Puts formulas in the place of the `call` of a layer and of those inside it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import keras

from gradcomp.activations.formulas import FORMULAS, attention
from gradcomp.activations.mode import formulas_apply
from gradcomp.activations.recompute import layer_call, recompute
from gradcomp.codecs import Codec

_MARK = "gradcomp_codec"
_layers = keras.layers
# Their gradients need none of their inputs' values.
_KEEP_NOTHING = (
    _layers.Average,
    _layers.Concatenate,
    _layers.Cropping1D,
    _layers.Cropping2D,
    _layers.Cropping3D,
    _layers.Embedding,
    _layers.Flatten,
    _layers.GlobalAveragePooling1D,
    _layers.GlobalAveragePooling2D,
    _layers.GlobalAveragePooling3D,
    _layers.Identity,
    _layers.InputLayer,
    _layers.Masking,
    _layers.Permute,
    _layers.RepeatVector,
    _layers.Reshape,
    _layers.Subtract,
    _layers.UpSampling1D,
    _layers.UpSampling2D,
    _layers.UpSampling3D,
    _layers.ZeroPadding1D,
    _layers.ZeroPadding2D,
    _layers.ZeroPadding3D,
)
# Leaves, although there are layers inside: these are called many times, or in a loop.
_WHOLE = (_layers.RNN, _layers.Wrapper)


def install(layer: Any, codec: Codec, alone: bool) -> int:
    """Gives a layer, or the layers inside it, formulas; returns how many have one now.

    Args:
      layer: built. Layers that have a formula already keep it.
      codec: what is kept is packed with it.
      alone: layers without a formula are computed again from their packed input each.
    """
    count = 0
    for part in _parts(layer):
        if hasattr(part.call, _MARK):
            count += 1
        elif isinstance(part, _layers.MultiHeadAttention):
            _set(part, "_compute_attention", attention, codec)
            count += 1
        elif (formula := formula_of(part)) is not None:
            _set(part, "call", formula, codec)
            count += 1
        elif alone and is_leaf(part) and not isinstance(part, _KEEP_NOTHING):
            _set(part, "call", _again, codec)
    return count


def formula_of(layer: Any) -> Any:
    """The formula of a layer whose `call` is that of a class with one; None for others."""
    kind: Any = type(layer)
    for known in kind.__mro__:
        if known in FORMULAS and kind.call is known.call:
            return FORMULAS[known]
    return None


def packs_by_itself(layer: Any) -> bool:
    """Whether a layer has a formula, whatever is inside of it."""
    return formula_of(layer) is not None


def uninstall(layer: Any) -> None:
    """Gives a layer and all inside it their own `call` back."""
    for part in _parts(layer):
        for method in ("call", "_compute_attention"):
            if hasattr(part.__dict__.get(method), _MARK):
                delattr(part, method)


def is_leaf(layer: Any) -> bool:
    """Whether a layer is dealt with as a whole."""
    return isinstance(layer, _WHOLE) or not layer._layers


def _parts(layer: Any) -> Iterator[Any]:
    """A layer and all inside it, but what is inside of leaves and of other packed layers."""
    yield layer
    if isinstance(layer, _WHOLE):
        return
    for inner in layer._layers:
        if not getattr(inner, "packs_activations", False):
            yield from _parts(inner)


def _set(layer: Any, method: str, formula: Any, codec: Codec) -> None:
    original = getattr(layer, method)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not formulas_apply():
            return original(*args, **kwargs)
        return formula(layer, original, codec, *args, **kwargs)

    setattr(call, _MARK, codec)
    setattr(layer, method, call)


def _again(layer: Any, call: Any, codec: Codec, *args: Any, **kwargs: Any) -> Any:
    return recompute(layer_call(layer, call), codec, args, kwargs)
