"""Block quantisation: one scale a block, codes of 8, 4 or 2 bits.

Source: QSGD, arXiv:1610.02132 (blocks scaled by their largest magnitude).
"""

import numpy as np
from numpy.typing import NDArray

from gradcomp.reference.floats import Floats, Payload, canonical
from gradcomp.reference.params import KernelParams
from gradcomp.reference.scales import (
    block_shapes,
    join_blocks,
    scales_to_largest,
    split_blocks,
)
from gradcomp.reference.threefry import Stream

Codes = NDArray[np.int32]


def _round(y: Floats, qmax: np.float32, random: NDArray[np.uint16] | None) -> Codes:
    """Codes in -qmax .. qmax: nearest even, or with random bits up or down in proportion."""
    if random is None:
        q = np.rint(y)
    else:
        # 8 + (2 * random + 1) / 2**17, put together from its bits.
        eight_and_more = np.uint32(0x41000008) | (random.astype(np.uint32) << np.uint32(4))
        q = np.floor(y + eight_and_more.view(np.float32)) - np.float32(8)
    return np.clip(q, -qmax, qmax).astype(np.int32)


def pack_codes(codes: Codes, bits: int) -> Payload:
    """[blocks, m] codes to [blocks, ceil(m * bits / 8)] bytes, planar.

    Byte j of a block holds, from its low bits up, the codes of elements j, B + j, 2B + j, ...
    where B is the number of bytes: so that a vector of codes becomes a vector of bytes.
    """
    blocks, m = codes.shape
    planes = 8 // bits
    size = (m * bits + 7) // 8
    padded = np.zeros((blocks, planes * size), np.int32)
    padded[:, :m] = codes & (2**bits - 1)
    shifts = bits * np.arange(planes, dtype=np.int32)[:, None]
    packed: Codes = (padded.reshape(blocks, planes, size) << shifts).sum(axis=1)
    return packed.astype(np.uint8)


def unpack_codes(packed: Payload, m: int, bits: int) -> Codes:
    """The inverse of `pack_codes`: [blocks, B] bytes to [blocks, m] codes, sign extended."""
    shifts = bits * np.arange(8 // bits, dtype=np.int32)[:, None]
    planes = (packed.astype(np.int32)[:, None, :] >> shifts) & (2**bits - 1)
    codes: Codes = planes.reshape(len(packed), planes.shape[1] * planes.shape[2])[:, :m]
    return np.where(codes >= 2 ** (bits - 1), codes - 2**bits, codes)


def quantize_encode(params: KernelParams, x: Floats, start: int, stream: Stream) -> Payload:
    """Payload of a segment: the scales of all blocks, then their packed codes.

    Args:
      params: family "quantize" (or the values of "topk").
      x: float32 [n].
      start: index in its tensor of `x[0]`, for the random bits.
      stream: whose random bits.
    Returns:
      uint8 [segment_size(params, n)].
    Error: half a scale an element (a whole one if stochastic, and then unbiased).
    """
    qmax = np.float32(2 ** (params.bits - 1) - 1)
    random = stream.bits(start, len(x)) if params.stochastic else None
    scales, packed, done = [], [], 0
    for blocks, m in block_shapes(len(x), params.block_size):
        here = slice(done, done + blocks * m)
        block = x[here].reshape(blocks, m)
        with np.errstate(all="ignore"):
            scale, inverse = scales_to_largest(block, qmax)
            y = np.where((scale > 0)[:, None], block * inverse[:, None], np.float32(0))
        codes = _round(y, qmax, None if random is None else random[here].reshape(blocks, m))
        scales.append(scale)
        packed.append(pack_codes(codes, params.bits))
        done = here.stop
    return join_blocks(scales, packed)


def quantize_decode(params: KernelParams, payload: Payload, numel: int) -> Floats:
    """float32 [numel] of a segment's payload; any codes and any scales are accepted."""
    values = [np.empty(0, np.float32)]
    for scale, packed, m in split_blocks(payload, numel, params.block_size, params.bits):
        codes = unpack_codes(packed, m, params.bits)
        with np.errstate(all="ignore"):
            values.append((codes.astype(np.float32) * scale[:, None]).reshape(-1))
    return canonical(np.concatenate(values))
