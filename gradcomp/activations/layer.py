"""`gc.pack_activations`: a layer, a model or a function that keeps little for backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from gradcomp.activations import recompute as again
from gradcomp.activations.imitate import imitate
from gradcomp.activations.install import install
from gradcomp.activations.mode import packing
from gradcomp.activations.pack import check_codec
from gradcomp.codecs import BF16, FP8, FP16, Codec, Quantize
from gradcomp.codecs import codec as as_codec
from gradcomp.errors import ActivationError, CodecError

_DEFAULT = FP16()


def pack_activations(
    layer: Any, codec: Codec | str = _DEFAULT, recompute: bool | None = None
) -> Any:
    """Makes a layer, a model or a function keep its activations packed until backward.

    Args:
      layer: a Keras layer or model, whose variables and weights stay where they are, or a function
        of tensors.
      codec: `Identity`, `FP16`, `BF16`, `FP8` or `Quantize`, or its spec. What it would not make
        smaller is kept as it is: float16 under FP16 stays, and goes to 8 bits under FP8.
      recompute: True keeps the packed inputs of the whole and runs it again in backward. False
        keeps what the formulas of the layers inside need, and leaves layers without one as they
        are. None is as False, and each layer without a formula is run again from its packed input.
        A function is always run again.
    Returns:
      a layer, model or function in its place. Layers inside it are changed: they pack.
    Raises:
      CodecError: the codec can't pack activations.
      ActivationError: the layer can't be packed; names it and says why.

    Example:
      >>> layer = gc.pack_activations(keras.layers.Dense(4096, activation="gelu"), gc.FP16())
    """
    chosen = as_codec(codec)
    if chosen is None:
        raise CodecError("activations are packed with a codec: 'none' leaves nothing to do")
    check_codec(chosen)
    if isinstance(layer, keras.Model):
        return PackedModel(layer, chosen, recompute)
    if isinstance(layer, keras.layers.Layer):
        return PackedLayer(layer, chosen, recompute)
    if callable(layer):
        if recompute is False:
            raise ActivationError(
                f"function {_name(layer)} has no formula: leave recompute=False away"
            )
        return _function(layer, chosen)
    raise ActivationError(
        f"a Keras layer, a model or a function can be packed, not {type(layer).__name__}"
    )


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))


def _while_run_again(codec: Codec) -> Codec:
    """What layers keep during a second run: 16 bits, as its input was rounded already.

    It lives for one run only, so that it hardly counts in memory.
    """
    return FP16() if isinstance(codec, FP8 | Quantize) else codec


def _function(function: Callable[..., Any], codec: Codec) -> Callable[..., Any]:
    def packed(*args: Any, **kwargs: Any) -> Any:
        if not packing():
            return function(*args, **kwargs)
        # AutoGraph goes on inside, where it has come this far.
        autograph = tf.__internal__.autograph
        converted = autograph.tf_convert(function, autograph.control_status_ctx())
        call = again.Call(converted, f"function {_name(function)}")
        return again.recompute(call, codec, args, kwargs)

    return imitate(packed, function)


class _Packed:
    """What a packed layer and a packed model share; a mixin of Keras's classes."""

    packs_activations = True
    layer: Any

    def _set_up(self: Any, layer: Any, codec: Codec, recompute: bool | None) -> None:
        self.layer = layer
        self.codec = codec
        self.recompute = recompute
        self._installed = False
        self.supports_masking = layer.supports_masking
        # XLA has no kernels of the codecs, and on one GPU Keras would choose it by itself.
        self.supports_jit = layer.supports_jit and isinstance(codec, FP16 | BF16)
        # As the layer's own: masks and shapes find its arguments by name.
        self._call_signature = layer._call_signature
        self.call_signature_parameters = layer.call_signature_parameters
        self._call_has_training_arg = layer._call_has_training_arg
        self._call_has_mask_arg = layer._call_has_mask_arg
        self._call_has_context_arg = dict(layer._call_has_context_arg)
        if layer.built:
            self._install()

    def _install(self: Any) -> None:
        inner = _while_run_again(self.codec) if self.recompute else self.codec
        count = install(self.layer, inner, alone=self.recompute is None)
        self._installed = True
        if self.recompute is False and not count:
            raise ActivationError(
                f"layer {self.layer.name!r} ({type(self.layer).__name__}) has no formula, nor has "
                "any layer in it: leave recompute=False away"
            )

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        layer = self.layer
        if not layer.built or not packing():
            return layer(*args, **kwargs)
        if not self._installed:
            self._install()
        exact = self.recompute is None and again.to_the_bit(self.codec)
        if self.recompute or exact:
            return again.recompute(again.layer_call(layer, layer), self.codec, args, kwargs)
        return layer(*args, **kwargs)

    def compute_output_spec(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.layer.compute_output_spec(*args, **kwargs)

    def compute_mask(self: Any, inputs: Any, previous_mask: Any) -> Any:
        return self.layer.compute_mask(inputs, previous_mask)

    def get_build_config(self: Any) -> Any:
        return None  # the layer inside has its own, and is built by that

    def get_config(self: Any) -> dict[str, Any]:
        return {
            "name": self.name,
            "layer": keras.saving.serialize_keras_object(self.layer),
            "codec": self.codec.get_config(),
            "recompute": self.recompute,
        }

    @classmethod
    def from_config(cls: Any, config: dict[str, Any], custom_objects: Any = None) -> Any:
        layer = keras.saving.deserialize_keras_object(
            config["layer"], custom_objects=custom_objects
        )
        return cls(
            layer,
            Codec.from_config(config["codec"]),
            config["recompute"],
            name=config["name"],
        )


@keras.saving.register_keras_serializable("gradcomp")
class PackedLayer(_Packed, keras.layers.Layer):
    """A layer whose activations are packed; made by `pack_activations`."""

    def __init__(
        self, layer: Any, codec: Codec, recompute: bool | None, name: str | None = None
    ) -> None:
        super().__init__(name=name or f"packed_{layer.name}", dtype=layer.dtype_policy)
        self._set_up(layer, codec, recompute)


@keras.saving.register_keras_serializable("gradcomp")
class PackedModel(_Packed, keras.Model):
    """A model whose activations are packed; made by `pack_activations`."""

    def __init__(
        self, layer: Any, codec: Codec, recompute: bool | None, name: str | None = None
    ) -> None:
        super().__init__(name=name or f"packed_{layer.name}", dtype=layer.dtype_policy)
        self._set_up(layer, codec, recompute)
