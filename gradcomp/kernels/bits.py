"""Masks and codes of few bits of TensorFlow tensors, by the ops in `_ops.so`."""

from typing import Any

from gradcomp.kernels.gpu import beside
from gradcomp.kernels.libraries import import_tensorflow, load_ops


def pack_bits(codes: Any, bits: int) -> Any:
    """uint8 [⌈n·bits/8⌉] of a bool or uint8 tensor of n elements, as `reference.pack_bits`.

    Args:
      codes: of any shape; of each element the low `bits` are kept.
      bits: 1, 2, 4 or 8.
    """
    ops = load_ops()
    with beside([codes]):
        packed = ops.gradcomp_pack_bits(codes=codes, bits=bits)
        numel = codes.shape.num_elements()
        if numel is not None:
            packed = import_tensorflow().ensure_shape(packed, [-(-numel * bits // 8)])
    return packed


def unpack_bits(packed: Any, bits: int, shape: Any, dtype: Any) -> Any:
    """The codes again, of `dtype` bool or uint8.

    Args:
      packed: uint8 [⌈n·bits/8⌉], any bytes.
      bits: 1, 2, 4 or 8.
      shape: int64 vector: dimensions whose product is n.
    """
    ops = load_ops()
    with beside([packed]):
        return ops.gradcomp_unpack_bits(packed=packed, dims=shape, bits=bits, T=dtype)
