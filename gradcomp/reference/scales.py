"""Blocks, and the scale that makes a block's largest magnitude the largest code."""

import numpy as np
from numpy.typing import NDArray

from gradcomp.reference.floats import Floats, Payload, canonical

SMALLEST_SCALE = np.float32(2.0**-126)
"""A block of a smaller scale is sent as zeros: subnormal scales lose digits."""


def block_shapes(numel: int, block_size: int) -> list[tuple[int, int]]:
    """Shapes (blocks, elements a block): the full blocks, then the last one if it is shorter."""
    shapes = [(numel // block_size, block_size), (1, numel % block_size)]
    return [(blocks, m) for blocks, m in shapes if blocks and m]


def scales_to_largest(x: Floats, largest_code: np.float32) -> tuple[Floats, Floats]:
    """(scale, inverse) of each row; a row that is not coded has scale NaN or 0, inverse 0."""
    absmax = np.abs(x).max(axis=1)
    scale = absmax / largest_code
    # A finite value must decode to a finite value, also at the upper end of float32.
    overflows = np.isinf(largest_code * scale)
    scale = np.where(overflows, np.nextafter(scale, np.float32(0)), scale)
    inverse = largest_code / absmax
    finite = np.isfinite(x).all(axis=1)
    scale = np.where(scale < SMALLEST_SCALE, np.float32(0), scale)
    scale = canonical(np.where(finite, scale, np.float32(np.nan)))
    return scale, np.where(scale > 0, inverse, np.float32(0))


def join_blocks(scales: list[Floats], codes: list[Payload]) -> Payload:
    """A payload: the scales of all blocks, then their codes."""
    wire = [scale.astype("<f4").view(np.uint8) for scale in scales]
    return np.concatenate([*wire, *(c.reshape(-1) for c in codes), np.empty(0, np.uint8)])


def split_blocks(
    payload: Payload, numel: int, block_size: int, bits: int
) -> list[tuple[Floats, NDArray[np.uint8], int]]:
    """Of full blocks, and of a shorter last one: (scales, codes [blocks, bytes], elements)."""
    all_blocks = -(-numel // block_size)
    scales = np.frombuffer(payload[: 4 * all_blocks].tobytes(), "<f4").astype(np.float32)
    codes, parts = payload[4 * all_blocks :], []
    for blocks, m in block_shapes(numel, block_size):
        size = (m * bits + 7) // 8
        parts.append((scales[:blocks], codes[: blocks * size].reshape(blocks, size), m))
        scales, codes = scales[blocks:], codes[blocks * size :]
    return parts
