"""The oracle of eight-bit floats and signs: against ml_dtypes and slow scalar loops."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradcomp import reference
from gradcomp.reference import KernelParams
from gradcomp.reference.float8 import round_float8, widen_float8
from gradcomp.reference.floats import canonical
from gradcomp.reference.sign import sum_in_lanes

DTYPES = {"float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0}

each_family = pytest.mark.parametrize("family", DTYPES)

any_floats = hnp.arrays(np.uint32, st.integers(0, 150), elements=st.integers(0, 2**32 - 1)).map(
    lambda words: canonical(words.view(np.float32))
)
finite_floats = hnp.arrays(
    np.float32,
    st.integers(1, 150),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@each_family
def test_every_code_is_what_ml_dtypes_says(family: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(
        canonical(widen_float8(family, codes)).view(np.uint32),
        canonical(codes.view(DTYPES[family]).astype(np.float32)).view(np.uint32),
    )


@each_family
@settings(deadline=None)
@given(data=st.data())
def test_rounding_is_what_ml_dtypes_does(family: str, data: st.DataObject) -> None:
    largest = LARGEST[family]
    value = st.floats(-largest, largest, width=32) | st.floats(-(2.0**-5), 2.0**-5, width=32)
    y = data.draw(hnp.arrays(np.float32, 100, elements=value))
    with np.errstate(all="ignore"):
        expected = y.astype(DTYPES[family]).view(np.uint8)
    np.testing.assert_array_equal(round_float8(family, y), expected)


@each_family
@settings(deadline=None)
@given(x=any_floats | finite_floats)
def test_blocks_are_what_a_scalar_loop_makes(family: str, x: np.ndarray) -> None:
    largest, scales, codes = np.float32(LARGEST[family]), b"", b""
    with np.errstate(all="ignore"):
        for at in range(0, x.size, 32):
            block = list(x[at : at + 32])
            absmax = max(map(abs, block))
            scale = absmax / largest
            if float(largest) * float(scale) >= 2.0**128 - 2.0**103:
                scale = np.nextafter(scale, np.float32(0))
            if not all(map(math.isfinite, block)):
                scale = np.float32(np.nan)
            elif scale < 2.0**-126:
                scale = np.float32(0)
            inverse = largest / absmax if scale > 0 else None
            scales += struct.pack("<I", int(canonical(np.array([scale])).view(np.uint32)[0]))
            for value in block:
                y = value * inverse if inverse is not None else np.float32(0)
                codes += np.float32(y).astype(DTYPES[family]).tobytes()
    payload = reference.float8_encode(KernelParams(family, block_size=32), x)
    assert payload.tobytes() == scales + codes


@each_family
@settings(deadline=None)
@given(x=finite_floats)
def test_finite_values_stay_finite_and_near(family: str, x: np.ndarray) -> None:
    params = KernelParams(family, block_size=32)
    back = reference.float8_decode(params, reference.float8_encode(params, x), x.size)
    relative = {"float8_e4m3": 2.0**-4, "float8_e5m2": 2.0**-3}[family]
    least = {"float8_e4m3": 2.0**-10, "float8_e5m2": 2.0**-17}[family]
    blocks = -(-x.size // 32)
    absmax = [np.abs(x[at : at + 32]).max() for at in range(0, x.size, 32)]
    scale = np.repeat(np.float64(absmax) / LARGEST[family], 32)[: 32 * blocks][: x.size]
    magnitude = np.abs(x.astype(np.float64))
    bound = np.maximum(magnitude * relative, scale * least) * (1 + 2.0**-12) + 2.0**-149
    bound = np.where(scale < 2.0**-126, magnitude, bound)
    assert (np.abs(x.astype(np.float64) - back) <= bound).all()


def lane_sum(values: list[np.float32]) -> np.float32:
    """The documented order, one addition after the other."""
    lanes = [np.float32(0)] * 32
    for i, value in enumerate(values):
        lanes[i % 32] = lanes[i % 32] + value
    for half in (16, 8, 4, 2, 1):
        lanes = [lanes[i] + lanes[half + i] for i in range(half)]
    return lanes[0]


@settings(deadline=None)
@given(x=any_floats | finite_floats, block_size=st.sampled_from([32, 64]))
def test_signs_are_what_a_scalar_loop_makes(x: np.ndarray, block_size: int) -> None:
    scales, packed = b"", b""
    with np.errstate(all="ignore"):
        for at in range(0, x.size, block_size):
            block = [np.float32(v) for v in x[at : at + block_size]]
            size, finite = np.float32(len(block)), all(map(math.isfinite, block))
            total = lane_sum([abs(v) for v in block])
            scale = total / size
            if not finite:
                scale = np.float32(np.nan)
            elif not math.isfinite(total):
                small = lane_sum([abs(v) * np.float32(2.0**-64) for v in block])
                scale = min(small / size * np.float32(2.0**64), max(map(abs, block)))
            if scale < 2.0**-126:
                scale = np.float32(0)
            scales += struct.pack("<I", int(canonical(np.array([scale])).view(np.uint32)[0]))
            length = -(-len(block) // 8)
            coded = finite and scale > 0
            for j in range(length):
                elements = enumerate(block[j::length])
                packed += bytes([sum((coded and bool(np.signbit(v))) << p for p, v in elements)])
    params = KernelParams("sign", block_size=block_size)
    payload = reference.sign_encode(params, x)
    assert payload.tobytes() == scales + packed
    assert payload.size == reference.segment_size(params, x.size)


@settings(deadline=None)
@given(x=finite_floats)
def test_scales_are_means(x: np.ndarray) -> None:
    (scale,) = reference.sign_scales(x, 160)
    mean = sum(Fraction(float(abs(v))) for v in x) / x.size
    if scale == 0:
        assert mean < Fraction(2) ** -126 * (1 + Fraction(1, 2**18))
    else:
        assert abs(Fraction(float(scale)) - mean) <= mean / 2**20
    assert np.isfinite(scale)


def test_lanes_are_added_as_a_tree() -> None:
    # A half added to 2**24 is lost, two of them together are not.
    row = np.zeros((1, 32), np.float32)
    row[0, [0, 1, 17]] = 2.0**24, 1, 1
    assert sum_in_lanes(row)[0] == 2.0**24 + 2
    row[0, [1, 17]], row[0, [8, 16]] = 0, 1
    assert sum_in_lanes(row)[0] == 2.0**24


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (KernelParams("float8_e4m3"), "block_size must be a positive multiple of 32, got 0"),
        (KernelParams("sign", block_size=48), "multiple of 32, got 48"),
        (KernelParams("sign", 1, 32), "sign takes a block_size only"),
        (KernelParams("float8_e5m2", 0, 32, True), "float8_e5m2 takes a block_size only"),
        (KernelParams("sign", 0, 32, False, "float16"), "sign takes no values, got 'float16'"),
        (KernelParams("float8_e3m4", 0, 32), "no kernel family 'float8_e3m4'"),
        (KernelParams("topk", 0, 0, False, "sign"), "multiple of 32, got 0"),
        (KernelParams("topk", 8, 32, False, "float8_e4m3"), "takes a block_size only"),
    ],
)
def test_kernels_that_do_not_exist(params: KernelParams, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reference.check_params(params)
