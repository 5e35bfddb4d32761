"""Blocks of eight-bit floats: one scale a block, E4M3 or E5M2 an element.

Source: arXiv:2209.05433, with a float32 scale a block.
"""

from typing import NamedTuple

import numpy as np

from gradcomp.reference.floats import Floats, Payload, canonical
from gradcomp.reference.params import KernelParams
from gradcomp.reference.scales import (
    block_shapes,
    join_blocks,
    scales_to_largest,
    split_blocks,
)


class _Format(NamedTuple):
    """A float of eight bits: a sign, the exponent, the mantissa."""

    mantissa: int
    """Bits of it."""
    least: int
    """Exponent of the smallest normal number, which is 1 - bias."""
    largest: float
    """Largest finite value."""
    infinite: int | None
    """The code of infinity, where there is one; larger magnitudes than the largest are NaN."""


FORMATS = {
    "float8_e4m3": _Format(3, -6, 448.0, None),
    "float8_e5m2": _Format(2, -14, 57344.0, 0x7C),
}


def round_float8(family: str, y: Floats) -> Payload:
    """Codes of values that round to finite ones: to nearest, ties to even.

    A code is a whole number of steps of its binade, counted from the smallest normal number on;
    below that, of the same steps from zero.
    """
    form = FORMATS[family]
    magnitude = np.abs(y)
    exponent = np.where(magnitude > 0, np.frexp(magnitude)[1] - 1, form.least)
    exponent = np.maximum(exponent, form.least)
    steps = np.rint(np.ldexp(magnitude, form.mantissa - exponent)).astype(np.int32)
    code = ((exponent - form.least) << form.mantissa) + steps
    return (code | np.signbit(y).astype(np.int32) << 7).astype(np.uint8)


def widen_float8(family: str, codes: Payload) -> Floats:
    """The float32 values of codes, exactly."""
    form = FORMATS[family]
    magnitude = codes.astype(np.int32) & 0x7F
    exponent = magnitude >> form.mantissa
    steps = magnitude & (2**form.mantissa - 1)
    steps = np.where(exponent > 0, steps + 2**form.mantissa, steps)
    shift = np.maximum(exponent, 1) - 1 + form.least - form.mantissa
    value = np.ldexp(steps.astype(np.float32), shift)
    value = np.where(value > form.largest, np.float32(np.nan), value)
    if form.infinite is not None:
        value = np.where(magnitude == form.infinite, np.float32(np.inf), value)
    return np.where(codes >= 0x80, -value, value).astype(np.float32)


def float8_encode(params: KernelParams, x: Floats) -> Payload:
    """Payload of a segment: the scales of all blocks, then a byte an element.

    Args:
      params: family "float8_e4m3" or "float8_e5m2" (or the values of "topk").
      x: float32 [n].
    Returns:
      uint8 [segment_size(params, n)].
    Error: half a step of the value's binade, times the scale.
    """
    largest = np.float32(FORMATS[params.family].largest)
    scales, codes, done = [], [], 0
    for blocks, m in block_shapes(len(x), params.block_size):
        block = x[done : done + blocks * m].reshape(blocks, m)
        with np.errstate(all="ignore"):
            scale, inverse = scales_to_largest(block, largest)
            y = np.where((scale > 0)[:, None], block * inverse[:, None], np.float32(0))
        scales.append(scale)
        codes.append(round_float8(params.family, y))
        done += blocks * m
    return join_blocks(scales, codes)


def float8_decode(params: KernelParams, payload: Payload, numel: int) -> Floats:
    """float32 [numel] of a segment's payload; any codes and any scales are accepted."""
    values = [np.empty(0, np.float32)]
    for scale, codes, _ in split_blocks(payload, numel, params.block_size, 8):
        with np.errstate(all="ignore"):
            values.append((widen_float8(params.family, codes) * scale[:, None]).reshape(-1))
    return canonical(np.concatenate(values))
