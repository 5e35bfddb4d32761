"""`auto_pack`: packs what a function or a layer keeps for backward, without a change to it."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import in_stateless_scope

from gradcomp.activations import override
from gradcomp.activations.imitate import imitate
from gradcomp.activations.kept import Kept, tell_unreached
from gradcomp.activations.pack import check_codec, runs_in_xla
from gradcomp.codecs import Codec, codec
from gradcomp.errors import CodecError
from gradcomp.policy import disabled


def auto_pack(fn_or_model: Any, codec_or_spec: Codec | str) -> Any:
    """Packs every large float activation that backward would keep, with no change to the code.

    The function is traced once for each signature of its arguments, as `tf.function` does, and
    runs as a graph also where it is called eagerly; its values stay as they are. What the gradient
    of an op reads of inputs and outputs is packed as soon as it is there, and unpacked where
    backward has come to that op. Weights, constants, integers and small tensors (below 1,024
    elements, or below 1/256 of the largest) are kept as they are; so are tensors that the codec
    makes no smaller, such as float16 under `FP16`, and float64.

    Not reached is what TensorFlow saves by other means: in loops (`tf.while_loop`, recurrent
    layers), in `tf.custom_gradient` (`silu` is one), in a `tf.function` that is called inside. A
    warning names it where it handles large activations, and `report()` has its bytes.

    Args:
      fn_or_model: a function of tensors, or a Keras layer or model. A layer is changed in place:
        its `call` packs from then on, in `fit` too. Its variables, weights' names, configuration
        and saved files stay; packing is not saved with it. Python in it that depends on tensors'
        values must be what `tf.function` can trace; in a layer, without AutoGraph.
      codec_or_spec: any codec but `TopK` and `Sign`, or its spec.
    Returns:
      a function with the same arguments, or the layer itself. The function, or the layer's
      `call`, has `report()`, which tells what the last gradient that was traced keeps.
    Raises:
      CodecError: the codec is not one for activations, or the first argument neither is callable
        nor has been built from Keras layers.
    Error: gradients are those of activations off by `codec.error_bound`; values are exact.

    Example:
      >>> model = gc.auto_pack(keras.applications.ResNet50(weights=None), "quantize:bits=8")
      >>> model.fit(x, y)
      >>> print(model.call.report())
    """
    chosen = codec(codec_or_spec)
    if chosen is None:
        raise CodecError("auto_pack needs a codec, such as gc.FP16(), got none")
    check_codec(chosen)
    if isinstance(fn_or_model, keras.Layer):
        if isinstance(fn_or_model.call, PackedFunction):
            raise CodecError(
                f"{fn_or_model.name} is packed already, with {fn_or_model.call.codec.spec}"
            )
        # On one GPU Keras would choose XLA by itself.
        fn_or_model.supports_jit = fn_or_model.supports_jit and runs_in_xla(chosen)
        fn_or_model.call = PackedFunction(fn_or_model.call, chosen, fn_or_model)
        return fn_or_model
    if not callable(fn_or_model):
        raise CodecError(f"auto_pack takes a function or a Keras layer, got {fn_or_model!r}")
    return PackedFunction(fn_or_model, chosen, None)


class PackedFunction:
    """A function of tensors that packs what its gradient needs.

    Attributes:
      codec: what it packs with.
    """

    def __init__(self, function: Callable[..., Any], codec: Codec, layer: Any) -> None:
        imitate(self, function)
        self.codec = codec
        self._original = function
        # The layer holds this object: held in turn, it would live until a garbage collection.
        self._layer = None if layer is None else weakref.ref(layer)
        self._sessions: list[override.Session] = []
        # AutoGraph is left to TensorFlow for functions; Keras runs layers without it.
        self._function = tf.function(self._traced, autograph=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Where Keras asks for shapes or passes weights by value, variables hold none of their own.
        if disabled() or in_stateless_scope():
            return self._original(*args, **kwargs)
        masks = [_mask(x) for x in tf.nest.flatten((args, kwargs))]
        outputs, out_masks, losses = self._function(masks, *args, **kwargs)
        for tensor, mask in zip(tf.nest.flatten(outputs), out_masks, strict=True):
            _set_mask(tensor, mask)
        for layer, added in zip(self._layers(), losses, strict=True):
            for loss in added:
                layer.add_loss(loss)
        return outputs

    def report(self) -> Kept:
        """What is kept for the gradient that was traced last; empty before there was one."""
        for session in reversed(self._sessions):
            if session.backward:
                return Kept.of(session)
        return Kept(self.codec.spec, (), ())

    def _traced(self, masks: list[Any], *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Outputs, their masks, and the losses that each layer added, all made in one graph."""
        for tensor, mask in zip(tf.nest.flatten((args, kwargs)), masks, strict=True):
            _set_mask(tensor, mask)
        layers = self._layers()
        before = [len(layer._losses) for layer in layers]
        with override.packing(self.codec) as session:
            outputs = self._converted(*args, **kwargs)
        out_masks = [_mask(x) for x in tf.nest.flatten(outputs)]
        self._sessions.append(session)
        tell_unreached(session, getattr(self, "__name__", "function"))
        losses = []
        for layer, known in zip(layers, before, strict=True):
            losses.append(list(layer._losses[known:]))
            del layer._losses[known:]
        return override.noted(outputs), out_masks, losses

    @functools.cached_property
    def _converted(self) -> Callable[..., Any]:
        """The function as AutoGraph rewrites it, that a graph may have its `if` and `while`."""
        # A tf.function of its own would not be reached.
        function = getattr(self._original, "python_function", self._original)
        if self._layer is not None or not inspect.isroutine(function):
            return function
        try:
            return tf.autograph.to_graph(function)
        except Exception:  # no source, as in a shell: tf.function runs such functions as they are
            return function

    def _layers(self) -> list[Any]:
        layer = None if self._layer is None else self._layer()
        return [] if layer is None else layer._flatten_layers()


def _mask(tensor: Any) -> Any:
    """What Keras notes on a tensor: which of its steps count."""
    return getattr(tensor, "_keras_mask", None)


def _set_mask(tensor: Any, mask: Any) -> None:
    if mask is not None:
        tensor._keras_mask = mask
