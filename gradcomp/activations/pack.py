"""A float tensor as the bytes of a codec, from forward until backward asks for it.

In a graph, `unpack` waits for the tensors given as `after`, the gradients that arrive from above:
without that, TensorFlow unpacks as soon as it has packed, and nothing is saved. Packing has a
gradient: that of `unpack(pack(x))` is the identity, whatever the codec loses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from gradcomp.activations.gradient import here, with_gradient
from gradcomp.codecs import BF16, FP8, FP16, Codec, Quantize, Sign, TopK
from gradcomp.errors import CodecError
from gradcomp.xla import for_xla

_FLOATS = ("float32", "float16", "bfloat16")
_CASTS: dict[type[Codec], Any] = {FP16: tf.float16, BF16: tf.bfloat16}
_MANY = 1 << 16  # elements from which a payload's bytes an element are judged


@dataclass(frozen=True, eq=False)
class Packed:
    """What is kept of a tensor.

    Attributes:
      parts: a codec's payload, uint8 [bytes], of those with scales in two parts; the tensor itself
        where the codec would not make it smaller; in a function for XLA a float16 or bfloat16
        tensor of the same shape.
      codec: None if it is the tensor itself.
      dtype: of the tensor.
      shape: integers, and scalar int64 tensors where dimensions are known only in a run; one int64
        vector where even their number is.
      link: float32 scalar that only leads gradients from `unpack` back to `pack`.
    """

    parts: tuple[Any, ...]
    codec: Codec | None
    dtype: Any
    shape: Any
    link: Any = None


def check_codec(codec: Codec) -> Codec:
    """`codec` if activations may be packed with it.

    Raises:
      CodecError: it leaves out elements, or all of their magnitudes.
    """
    if not isinstance(codec, Codec):
        raise CodecError(f"activations are packed with a codec such as gc.FP16(), got {codec!r}")
    if isinstance(codec, TopK | Sign):
        raise CodecError(
            f"{codec.spec} keeps too little of an activation for backward: pack with FP16, BF16, "
            "FP8 or Quantize"
        )
    return codec


def packs(codec: Codec, dtype: Any) -> bool:
    """Whether `codec` makes tensors of `dtype` smaller.

    Integers, booleans, resources and complex numbers are left alone, and so is what is as small
    already: float16 stays float16 under FP16 and BF16, and goes to 8 bits under FP8 and Quantize.

    Raises:
      CodecError: a real floating type that no codec takes.
    """
    dtype = tf.as_dtype(dtype)
    if not dtype.is_floating:
        return False
    if dtype.name not in _FLOATS:
        raise CodecError(
            f"activations of {dtype.name} can't be packed by {codec.spec}: compute in float32, "
            "float16 or bfloat16, or leave this layer as it is"
        )
    return codec.payload_size(_MANY) < _MANY * dtype.size


def runs_in_xla(codec: Codec) -> bool:
    """Whether a function that packs with it can be compiled by XLA."""
    return type(codec) in _CASTS


@tf.autograph.experimental.do_not_convert
def pack(x: Any, codec: Codec) -> Packed:
    """Packs a tensor.

    Args:
      x: tensor of any shape, also one known only in part while a function is traced.
      codec: any but `TopK` and `Sign`. `Quantize(stochastic=None)` rounds eight bits to
        nearest, fewer at random.
    Returns:
      what is to be kept, for `unpack`.
    Raises:
      CodecError: `x` has a float dtype that the codec does not take, or the function is one for
        XLA and the codec not a cast.
    Error: `codec.error_bound(x)`.
    """
    x = tf.convert_to_tensor(x)
    if not packs(codec, x.dtype):
        return Packed((x,), None, x.dtype, ())
    shape, numel = _sizes(x)
    cast, dtype = _cast_for_xla(codec), x.dtype

    def packed(x: Any) -> Any:
        parts = [_saturating_cast(x, cast)] if cast else _encode(x, codec, numel)
        # Of no known shape: the gradient that comes back through it has that of x.
        link = tf.compat.v1.placeholder_with_default(tf.zeros([]), None)
        return (*parts, link), lambda *upstream: tf.cast(upstream[-1], dtype)

    *parts, link = with_gradient(packed, [x])
    return Packed(tuple(parts), codec, dtype, shape, link)


@tf.autograph.experimental.do_not_convert
def unpack(packed: Packed, after: Sequence[Any] = ()) -> Any:
    """The tensor again, of its own shape and dtype.

    Args:
      packed: from `pack`.
      after: tensors that must be there before a graph unpacks: the gradients from above.
    """
    gates = [tensor for tensor in after if tensor is not None]
    if packed.codec is None:
        # XLA would find that a second run from the same values is the first.
        waits = for_xla() and packed.dtype.is_floating
        return _wait(packed.parts[0], gates) if waits else here(packed.parts[0])

    @tf.custom_gradient
    def unpacked(*parts: Any) -> Any:
        x = _decode(parts[:-1], packed, gates)
        nothing = [None] * (len(parts) - 1)
        return x, lambda gradient: (*nothing, tf.cast(gradient, tf.float32))

    return unpacked(*packed.parts, packed.link)


def gate(after: Sequence[Any]) -> Any:
    """A scope in which a graph's ops wait for the tensors of `after`."""
    return tf.control_dependencies([tensor for tensor in after if tensor is not None])


def _sizes(x: Any) -> tuple[Any, Any]:
    """`Packed.shape` of a tensor, and how many elements it has."""
    if x.shape.is_fully_defined():
        return tuple(x.shape), x.shape.num_elements()
    dims, numel = tf.shape(x, tf.int64), tf.size(x, tf.int64)
    if x.shape.rank is None:
        return dims, numel
    return tuple(dims[i] if dim is None else dim for i, dim in enumerate(x.shape)), numel


def _cast_for_xla(codec: Codec) -> Any:
    """The dtype to cast to in a function that XLA compiles; None elsewhere."""
    if not for_xla():
        return None
    if type(codec) not in _CASTS:
        raise CodecError(
            f"{codec.spec} can't pack in a function that XLA compiles: its kernels do not run "
            "there. Pack with gc.FP16() or gc.BF16(), or leave jit_compile=True away"
        )
    return _CASTS[type(codec)]


def _saturating_cast(x: Any, dtype: Any) -> Any:
    """As the kernels cast: what is finite stays finite."""
    limited = tf.clip_by_value(x, tf.cast(dtype.min, x.dtype), tf.cast(dtype.max, x.dtype))
    return tf.cast(tf.where(tf.math.is_finite(x), limited, x), dtype)


def to_nearest(codec: Codec) -> Codec:
    """`codec` for a tensor of which nothing is lost to one side: to nearest, if that is open.

    Eight bits are rounded so anyway: the codec stays the same, and what is kept with it is found.
    """
    if isinstance(codec, Quantize) and codec.stochastic is None and codec.bits < 8:
        return Quantize(codec.bits, codec.block_size, stochastic=False)
    return codec


def _rounding(codec: Codec) -> tuple[Codec, Any]:
    """The codec with its rounding decided, and the four words of its random numbers.

    Eight bits to nearest: rounding at random adds noise alone. Fewer bits at random: to nearest,
    what is small against its block, as probabilities are, is lost always to the same side.
    """
    if not isinstance(codec, Quantize):
        return codec, (0, 0, 0, 0)
    at_random = codec.bits < 8 if codec.stochastic is None else codec.stochastic
    seed = tf.random.uniform([], maxval=2**62, dtype=tf.int64) if at_random else 0
    return Quantize(codec.bits, codec.block_size, at_random), (seed, 0, 0, 0)


def _table(numel: Any) -> Any:
    if tf.is_tensor(numel):
        return tf.reshape(tf.stack([0, 0, numel, 0, 0]), [1, 5])
    return np.array([[0, 0, numel, 0, 0]], np.int64)


def _encode(x: Any, codec: Codec, numel: Any) -> list[Any]:
    decided, rng = _rounding(codec)
    payload = decided.encode_bucket([x], None, _table(numel), rng)[0]
    return _apart(payload, codec, numel) if isinstance(codec, FP8 | Quantize) else [payload]


def _apart(payload: Any, codec: FP8 | Quantize, numel: Any) -> list[Any]:
    """Scales, with the first byte of the codes, and the rest of these.

    Of many a tensor the codes are a power of two, and with the scales somewhat more, for which
    TensorFlow's allocator may take the next one: it leaves a chunk whole that is not twice as large
    as what is asked for. So both are copied. At an aligned byte they would not be, but be a view of
    the payload, which stayed.
    """
    bits = codec.bits if isinstance(codec, Quantize) else 8
    size = tf.size(payload, tf.int64)
    cut = tf.minimum(size - (tf.cast(numel, tf.int64) * bits + 7) // 8 + 1, size)
    return [tf.concat([payload[:1], payload[1:cut]], 0), payload[cut:]]


def _decode(parts: Sequence[Any], packed: Packed, after: Sequence[Any]) -> Any:
    if parts[0].dtype != tf.uint8:
        return tf.cast(_wait(parts[0], after), packed.dtype)
    assert packed.codec is not None
    flat = tf.is_tensor(packed.shape)
    numel = tf.reduce_prod(packed.shape) if flat else math.prod(packed.shape)
    shapes = [(numel,) if flat else packed.shape]
    with tf.control_dependencies(after):
        payload = parts[0] if len(parts) == 1 else tf.concat(parts, 0)
        outputs, _ = packed.codec.decode_bucket(
            payload, 1, _table(numel), 1.0, shapes, [packed.dtype.name]
        )
        return tf.reshape(outputs[0], packed.shape) if flat else outputs[0]


def _wait(payload: Any, after: Sequence[Any]) -> Any:
    """`payload`, which XLA, deaf to control edges, can't have before the tensors of `after`.

    It depends on an element of each: one that is NaN makes all of it NaN, as the gradient is then.
    """
    for tensor in after:
        if not tensor.dtype.is_floating:
            continue
        first = tf.reshape(tensor, [-1])[:1]
        there = tf.reduce_all(tf.equal(first, first))
        payload = tf.where(there, payload, tf.constant(float("nan"), payload.dtype))
    return payload
