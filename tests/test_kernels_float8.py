"""Eight-bit floats on the CPU: every code, every rounding boundary, scales at their limits."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import DTYPES, check_decode, check_encode, one_row

from gradcomp import _native
from gradcomp.reference import KernelParams
from gradcomp.reference.float8 import FORMATS, widen_float8

each_family = pytest.mark.parametrize("family", FORMATS)
CODES = np.arange(256, dtype=np.uint8)


def with_largest(family: str, x: np.ndarray, block_size: int = 32) -> np.ndarray:
    """`x` in blocks that begin with the format's largest number, so that every scale is 1."""
    rows = np.resize(x, (-(-x.size // (block_size - 1)), block_size - 1))
    largest = np.full((len(rows), 1), FORMATS[family].largest)
    return np.hstack([largest, rows]).astype(np.float32).reshape(-1)


@each_family
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, -0.37, 1e-38, 1e-45, 3e38, 0.0, np.inf, np.nan])
def test_every_code_decodes_at_every_scale(family: str, dtype: str, scale: float) -> None:
    params = KernelParams(family, block_size=32)
    scales = np.full(8, scale, "<f4").view(np.uint8)
    payload = np.concatenate([scales, CODES])
    check_decode(params, payload, 1, one_row(256), [256], 1.0, [dtype])
    both = np.concatenate([payload, scales, CODES[::-1]])
    check_decode(params, both, 2, one_row(256), [256], 0.5, [dtype], misalignments=[1])


@each_family
def test_every_finite_code_comes_back(family: str) -> None:
    values = widen_float8(family, CODES)
    finite = np.isfinite(values)
    x = with_largest(family, values[finite])
    params = KernelParams(family, block_size=32)
    payload = check_encode(params, [x], None, one_row(x.size))
    codes = payload[4 * x.size // 32 :].reshape(-1, 32)[:, 1:].reshape(-1)
    np.testing.assert_array_equal(codes, np.resize(CODES[finite], codes.size))


@each_family
def test_every_rounding_boundary(family: str) -> None:
    values = np.sort(np.abs(widen_float8(family, CODES)))
    values = np.unique(values[np.isfinite(values)])
    halfway = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    x = np.concatenate([np.nextafter(halfway, np.float32(0)), halfway, np.nextafter(halfway, 1e9)])
    x = with_largest(family, np.concatenate([x, -x]).astype(np.float32))
    params = KernelParams(family, block_size=32)
    payload = check_encode(params, [x], [np.zeros_like(x)], one_row(x.size))
    out = np.empty_like(x)
    assert _native.decode(_native.Codec(*params), payload, 1, one_row(x.size), 1.0, [out])
    nearest = np.abs(np.abs(x)[:, None] - values).min(axis=1)
    np.testing.assert_array_equal(np.abs(x - out), nearest)
    # Ties go to even mantissas, which are every second number counted from zero.
    ties = np.isin(np.abs(x), halfway)
    places = np.searchsorted(values, np.abs(out[ties]))
    assert ties.sum() >= 2 * halfway.size and not (places % 2).any()


@each_family
@pytest.mark.parametrize("block_size", [32, 128, 1024])
def test_scales_at_the_ends_of_their_range(family: str, block_size: int) -> None:
    params = KernelParams(family, block_size=block_size)
    least = int(np.float32(2.0**-126 * FORMATS[family].largest).view(np.uint32))
    largest = 0x7F7FFFFF
    for center in (least, largest - 60, 0x3F800000):
        for bits in range(center - 20, min(center + 60, largest) + 1):
            block = np.full(block_size, np.uint32(bits).view(np.float32))
            block[1::2] *= np.float32(-0.37)
            block[2::3] *= np.float32(2.0**-9)
            payload = check_encode(params, [block], [np.zeros_like(block)], one_row(block_size))
            out = np.empty_like(block)
            codec = _native.Codec(*params)
            assert _native.decode(codec, payload, 1, one_row(block_size), 1.0, [out])
            assert out.any() == (bits >= least)
