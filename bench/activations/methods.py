"""The ways of keeping fewer activations that are compared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

import gradcomp as gc

_CODECS = {
    "FP16": "fp16",
    "FP8": "fp8",
    "8-bit": "quantize:bits=8",
    "4-bit": "quantize:bits=4",
}
AUTO = "auto_pack, "
RECOMPUTED = " + recompute"
PLAIN = "plain"
RECOMPUTE_GRAD = "tf.recompute_grad"
REMAT = "keras.remat"
SCOPES = {f'RematScope("{mode}")': mode for mode in ("activations", "full")}
MIXED = "mixed_bfloat16"

STOCK = (RECOMPUTE_GRAD, REMAT, *SCOPES, MIXED)
METHODS: tuple[str, ...] = (
    PLAIN,
    *STOCK,
    *_CODECS,
    *(name + RECOMPUTED for name in _CODECS),
    *(AUTO + name for name in ("FP16", "8-bit")),
)


@dataclass(frozen=True)
class Method:
    """How blocks are made and called.

    Attributes:
      scope: entered while they are made.
      wrap: gives for the blocks what is called in training.
    """

    scope: Callable[[], Any]
    wrap: Callable[[Sequence[Any]], list[Callable[[Any], Any]]]


def method(name: str) -> Method:
    """The method of that name, one of `METHODS`."""
    if name in (RECOMPUTE_GRAD, REMAT):
        remat = tf.recompute_grad if name == RECOMPUTE_GRAD else keras.remat
        return Method(contextlib.nullcontext, lambda blocks: [remat(_training(b)) for b in blocks])
    if name in SCOPES:
        return Method(lambda: keras.RematScope(SCOPES[name]), _plain)
    if name == MIXED:
        return Method(_mixed, _plain)
    if name.startswith(AUTO):
        codec = _CODECS[name.removeprefix(AUTO)]
        return Method(contextlib.nullcontext, lambda blocks: _auto(blocks, codec))
    if name == PLAIN:
        return Method(contextlib.nullcontext, _plain)
    codec = _CODECS[name.removesuffix(RECOMPUTED)]
    again = True if name.endswith(RECOMPUTED) else None
    return Method(
        contextlib.nullcontext,
        lambda blocks: [_training(gc.pack_activations(b, codec, recompute=again)) for b in blocks],
    )


def _training(block: Any) -> Callable[[Any], Any]:
    return lambda x: block(x, training=True)


def _plain(blocks: Sequence[Any]) -> list[Callable[[Any], Any]]:
    return [_training(block) for block in blocks]


def _auto(blocks: Sequence[Any], codec: str) -> list[Callable[[Any], Any]]:
    """All blocks as one function, as a model is packed."""

    def model(x: Any) -> Any:
        for block in blocks:
            x = block(x, training=True)
        return x

    return [gc.auto_pack(model, codec)]


@contextlib.contextmanager
def _mixed() -> Any:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(MIXED)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
