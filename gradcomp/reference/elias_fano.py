"""Increasing integers in about 2 + log2(n / k) bits each, at a size known from n and k.

Source: Elias–Fano as in Vigna, "Quasi-succinct indices", arXiv:1206.4300.
"""

import numpy as np
from numpy.typing import NDArray

from gradcomp.reference.floats import Payload
from gradcomp.reference.params import index_low_bits, index_size, index_upper_bits

Indices = NDArray[np.int64]


def elias_fano_encode(index: Indices, numel: int) -> Payload:
    """Codes strictly increasing indices.

    Args:
      index: int64 [k], 0 <= index < numel, 1 <= k.
      numel: n.
    Returns:
      uint8 [index_size(n, k)]: the low bits of every index, then the high bits in unary: bit
      i + (index_i >> low) is set for each i.
    """
    k = len(index)
    low = index_low_bits(numel, k)
    lower = (index[:, None] >> np.arange(low)) & 1
    upper = np.zeros(index_upper_bits(numel, k), np.uint8)
    upper[np.arange(k) + (index >> low)] = 1
    parts = [np.packbits(bits.astype(np.uint8), bitorder="little") for bits in (lower, upper)]
    return np.concatenate(parts)


def elias_fano_decode(payload: Payload, numel: int, kept: int) -> Indices:
    """The inverse of `elias_fano_encode`: int64 [kept], strictly increasing, below `numel`.

    Raises:
      ValueError: no encoder writes such bytes.
    """
    if payload.size != index_size(numel, kept):
        raise ValueError(f"indices take {index_size(numel, kept)} bytes, got {payload.size}")
    low = index_low_bits(numel, kept)
    lower_size = (kept * low + 7) // 8
    lower = np.unpackbits(payload[:lower_size], bitorder="little")
    upper = np.unpackbits(payload[lower_size:], bitorder="little")
    upper_bits = index_upper_bits(numel, kept)
    if lower[kept * low :].any() or upper[upper_bits:].any():
        raise ValueError("a padding bit among the indices is set")
    ones = np.flatnonzero(upper[:upper_bits])
    if len(ones) != kept:
        raise ValueError(f"expected {kept} indices, found {len(ones)}")
    low_part = lower[: kept * low].reshape(kept, low).astype(np.int64) << np.arange(low)
    index: Indices = ((ones - np.arange(kept)) << low) + low_part.sum(axis=1)
    if index[-1] >= numel or (np.diff(index) <= 0).any():
        raise ValueError(f"the indices do not increase, or reach {numel}")
    return index
