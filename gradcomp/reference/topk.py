"""Top-k sparsification: the k largest magnitudes, their indices and their values.

Source: arXiv:1809.07599.
"""

import numpy as np

from gradcomp.reference.block import block_decode, block_encode
from gradcomp.reference.elias_fano import Indices, elias_fano_decode, elias_fano_encode
from gradcomp.reference.floats import Floats, Payload, bits_of
from gradcomp.reference.params import KernelParams, index_size
from gradcomp.reference.threefry import Stream


def topk_select(x: Floats, kept: int) -> Indices:
    """Increasing indices of the `kept` largest |x|; NaN above inf, ties to the lowest index."""
    magnitude = bits_of(x) & np.uint32(0x7FFFFFFF)
    largest_first = np.argsort(~magnitude, kind="stable")
    return np.sort(largest_first[:kept]).astype(np.int64)


def topk_encode(params: KernelParams, x: Floats, kept: int, stream: Stream) -> Payload:
    """Payload of a segment: its indices, then its values as `params.values` in index order.

    Args:
      params: family "topk".
      x: float32 [n], canonical.
      kept: k; 1 <= k <= n, or 0 for an empty payload.
      stream: whose random bits; a kept value's position in the list is its element number.
    Returns:
      uint8 [segment_size(params, n, kept)].
    """
    if kept == 0:
        return np.empty(0, np.uint8)
    index = topk_select(x, kept)
    values = block_encode(params.of_values, x[index], 0, stream)
    return np.concatenate([elias_fano_encode(index, len(x)), values])


def topk_decode(params: KernelParams, payload: Payload, numel: int, kept: int) -> Floats:
    """float32 [numel]: +0, with the kept values added at their indices."""
    dense = np.zeros(numel, np.float32)
    if kept:
        size = index_size(numel, kept)
        index = elias_fano_decode(payload[:size], numel, kept)
        dense[index] += block_decode(params.of_values, payload[size:], kept)
    return dense
