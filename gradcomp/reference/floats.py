"""Floating-point formats by their bits: canonical NaNs, widening, rounding, the cast payloads.

bfloat16 travels as uint16 bits, so that NumPy alone is enough.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]
Payload = NDArray[np.uint8]

_ENCODE_AS = {"float32": "<u4", "float16": "<u2", "bfloat16": "<u2"}


def bits_of(x: Floats) -> NDArray[np.uint32]:
    """The bit patterns of float32 values."""
    return np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)


def canonical(x: Floats) -> Floats:
    """`x` with every NaN replaced by 0x7fc00000, so that all machines write the same bytes."""
    nan = np.uint32(0x7FC00000).view(np.float32)
    return np.where(np.isnan(x), nan, x).astype(np.float32, copy=False)


def widen(x: NDArray[Any]) -> Floats:
    """float32, float16 or bfloat16 to float32: exact. NaNs keep whatever payload they had."""
    if x.dtype.name == "bfloat16":
        return widen_bfloat16(np.ascontiguousarray(x).view(np.uint16))
    if x.dtype.name not in ("float32", "float16"):
        raise ValueError(f"expected float32, float16 or bfloat16, got {x.dtype.name}")
    return x.astype(np.float32)


def widen_bfloat16(bits: Halves) -> Floats:
    """bfloat16 bits to float32: the upper half of the word."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_float16(x: Floats, *, saturate: bool) -> Halves:
    """float16 bits of `x`, to nearest even; overflow gives ±inf, or ±65504 if `saturate`."""
    with np.errstate(all="ignore"):
        half = x.astype(np.float16).view(np.uint16)
    sign = half & np.uint16(0x8000)
    if saturate:
        half = np.where(np.isfinite(x) & (half - sign == 0x7C00), sign | np.uint16(0x7BFF), half)
    return np.where(np.isnan(x), np.uint16(0x7E00), half)


def round_bfloat16(x: Floats, *, saturate: bool) -> Halves:
    """bfloat16 bits of `x`, to nearest even; overflow gives ±inf, or ±0x7f7f if `saturate`."""
    bits = bits_of(canonical(x))
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    half = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    sign = half & np.uint16(0x8000)
    if saturate:
        half = np.where(np.isfinite(x) & (half - sign == 0x7F80), sign | np.uint16(0x7F7F), half)
    return np.where(np.isnan(x), np.uint16(0x7FC0), half)


def cast_encode(family: str, x: Floats) -> Payload:
    """Payload of a cast family: the elements one after the other, little endian."""
    if family == "float32":
        bits: NDArray[Any] = bits_of(canonical(x))
    elif family == "float16":
        bits = round_float16(x, saturate=True)
    else:
        bits = round_bfloat16(x, saturate=True)
    return np.frombuffer(bits.astype(_ENCODE_AS[family]).tobytes(), dtype=np.uint8)


def cast_decode(family: str, payload: Payload) -> Floats:
    """The float32 values of a cast payload."""
    bits = np.frombuffer(payload.tobytes(), dtype=_ENCODE_AS[family])
    if family == "float32":
        return canonical(bits.astype(np.uint32).view(np.float32))
    half = bits.astype(np.uint16)
    if family == "float16":
        return canonical(half.view(np.float16).astype(np.float32))
    return canonical(widen_bfloat16(half))


def to_dtype(x: Floats, dtype: str) -> NDArray[Any]:
    """`x` in an output dtype, by plain rounding to nearest even; overflow gives ±inf.

    "bfloat16" gives uint16 bits unless some package has taught NumPy that dtype.
    """
    if dtype == "float32":
        return x
    if dtype == "float16":
        return round_float16(x, saturate=False).view(np.float16)
    if dtype == "bfloat16":
        bits = round_bfloat16(x, saturate=False)
        try:
            return bits.view(np.dtype("bfloat16"))
        except TypeError:
            return bits
    raise ValueError(f"expected float32, float16 or bfloat16, got {dtype}")
