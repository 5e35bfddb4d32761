"""Blocks of signs: the mean magnitude of a block as its scale, one bit an element.

Source: EF-SignSGD, arXiv:1901.09847.
"""

import numpy as np

from gradcomp.reference.floats import Floats, Payload, canonical
from gradcomp.reference.params import KernelParams
from gradcomp.reference.quantize import pack_codes, unpack_codes
from gradcomp.reference.scales import SMALLEST_SCALE, block_shapes, join_blocks, split_blocks

_LANES = 32


def sum_in_lanes(x: Floats) -> Floats:
    """float32 [rows]: the sum of each row of float32 [rows, m], in the order of the wire format.

    Lane l adds the elements l, 32 + l, 64 + l, … of its row one after the other; then the upper
    half of the lanes is added to the lower, until one is left.
    """
    rows, m = x.shape
    padded = np.zeros((rows, -(-m // _LANES) * _LANES), np.float32)
    padded[:, :m] = x
    lanes = np.zeros((rows, _LANES), np.float32)
    for at in range(0, padded.shape[1], _LANES):
        lanes = lanes + padded[:, at : at + _LANES]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def _scales(x: Floats) -> Floats:
    """The scale of each row; of a row that is not coded, NaN or 0."""
    magnitude, count = np.abs(x), np.float32(x.shape[1])
    scale = sum_in_lanes(magnitude) / count
    # A sum may overflow, the mean of finite values may not.
    small = sum_in_lanes(magnitude * np.float32(2.0**-64)) / count * np.float32(2.0**64)
    scale = np.where(np.isfinite(scale), scale, np.minimum(small, magnitude.max(axis=1)))
    scale = np.where(scale < SMALLEST_SCALE, np.float32(0), scale)
    return canonical(np.where(np.isfinite(x).all(axis=1), scale, np.float32(np.nan)))


def sign_scales(x: Floats, block_size: int) -> Floats:
    """float32 [blocks]: the scales of float32 [n]."""
    scales, done = [np.empty(0, np.float32)], 0
    for blocks, m in block_shapes(len(x), block_size):
        with np.errstate(all="ignore"):
            scales.append(_scales(x[done : done + blocks * m].reshape(blocks, m)))
        done += blocks * m
    return np.concatenate(scales)


def sign_encode(params: KernelParams, x: Floats) -> Payload:
    """Payload of a segment: the scales of all blocks, then the sign bits of their elements.

    Args:
      params: family "sign" (or the values of "topk").
      x: float32 [n].
    Returns:
      uint8 [segment_size(params, n)].
    """
    scales, codes, done = sign_scales(x, params.block_size), [], 0
    left = scales
    for blocks, m in block_shapes(len(x), params.block_size):
        block = x[done : done + blocks * m].reshape(blocks, m)
        # A NaN is not above 0 either.
        negative = np.signbit(block) & (left[:blocks] > 0)[:, None]
        codes.append(pack_codes(negative.astype(np.int32), 1))
        left, done = left[blocks:], done + blocks * m
    return join_blocks([scales], codes)


def sign_decode(params: KernelParams, payload: Payload, numel: int) -> Floats:
    """float32 [numel] of a segment's payload; any bits and any scales are accepted."""
    values = [np.empty(0, np.float32)]
    for scale, codes, m in split_blocks(payload, numel, params.block_size, 1):
        magnitude = scale[:, None]
        negative = unpack_codes(codes, m, 1) < 0
        values.append(np.where(negative, -magnitude, magnitude).reshape(-1))
    return canonical(np.concatenate(values))
