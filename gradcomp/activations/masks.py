"""Masks and small codes until backward, of one, two or four bits an element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gradcomp.kernels.bits import pack_bits, unpack_bits
from gradcomp.xla import for_xla


@dataclass(frozen=True, eq=False)
class PackedCodes:
    """What is kept of a bool or uint8 tensor.

    Attributes:
      payload: uint8 [⌈n·bits/8⌉]; in a function for XLA, where the kernels do not run, the tensor.
      bits: 1, 2, 4 or 8; 0 if the payload is the tensor.
      dims: int64 vector, its shape.
    """

    payload: Any
    bits: int
    dims: Any
    shape: tf.TensorShape
    dtype: Any

    @property
    def parts(self) -> tuple[Any, ...]:
        """As those of `Packed`."""
        return (self.payload,)


def code_width(count: int) -> int:
    """The least width, of 1, 2, 4 and 8 bits, for codes below `count`; 0 if they need more."""
    return next((bits for bits in (1, 2, 4, 8) if count <= 1 << bits), 0)


def pack_codes(codes: Any, bits: int) -> PackedCodes:
    """Packs a bool tensor, or uint8 codes below 2**bits."""
    width = 0 if for_xla() else bits
    payload = pack_bits(codes, bits) if width else codes
    dims = tf.shape(codes, tf.int64)
    return PackedCodes(payload, width, dims, codes.shape, codes.dtype)


def unpack_codes(packed: PackedCodes, after: Sequence[Any] = ()) -> Any:
    """The tensor again; a graph waits for `after` before it unpacks."""
    if not packed.bits:
        return packed.payload
    with tf.control_dependencies([tensor for tensor in after if tensor is not None]):
        codes = unpack_bits(packed.payload, packed.bits, packed.dims, packed.dtype)
    return tf.ensure_shape(codes, packed.shape)
