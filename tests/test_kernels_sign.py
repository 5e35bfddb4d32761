"""Signs on the CPU: the order of the sum, sums that overflow, scales at their limits."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import check_encode, numbers, one_row

from gradcomp import _native
from gradcomp.reference import KernelParams

BLOCKS = (32, 96, 512, 544, 2080)
each_block = pytest.mark.parametrize("block_size", BLOCKS)
FLT_MAX = np.finfo(np.float32).max


def scales_of(payload: np.ndarray, blocks: int) -> np.ndarray:
    return payload[: 4 * blocks].view("<f4")


@each_block
def test_the_sum_is_taken_in_the_documented_order(block_size: int) -> None:
    # Magnitudes of 20 binades: almost any other order rounds to another sum somewhere.
    params, differ = KernelParams("sign", block_size=block_size), 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal(block_size) * 2.0 ** rng.integers(-10, 10, block_size)
        x = x.astype(np.float32)
        payload = check_encode(params, [x], [np.zeros_like(x)], one_row(block_size))
        in_order = np.float32(0)
        for value in np.abs(x):
            in_order = np.float32(in_order + value)
        differ += scales_of(payload, 1)[0] != in_order / np.float32(block_size)
    assert differ > 10


@each_block
@pytest.mark.parametrize("share", [1.0, 0.999, 0.5, 0.1])
def test_a_sum_may_overflow_and_the_mean_may_not(block_size: int, share: float) -> None:
    params = KernelParams("sign", block_size=block_size)
    for numel in (1, 2, 3, 31, 33, block_size - 1, block_size, 2 * block_size + 3):
        x = np.full(numel, FLT_MAX * np.float32(share), np.float32)
        x[1::3] *= np.float32(-1)
        payload = check_encode(params, [x], [np.zeros_like(x)], one_row(numel))
        blocks = -(-numel // block_size)
        scales = scales_of(payload, blocks)
        np.testing.assert_allclose(scales, np.float32(FLT_MAX * np.float32(share)), rtol=1e-6)
        assert (scales <= np.abs(x).max()).all()
        out = np.empty_like(x)
        assert _native.decode(_native.Codec(*params), payload, 1, one_row(numel), 1.0, [out])


@each_block
def test_huge_values_among_small_ones(block_size: int) -> None:
    params = KernelParams("sign", block_size=block_size)
    for huge in range(0, block_size, 5):
        x = numbers("normal", block_size, huge)
        x[:huge] = np.clip(x[:huge], -3, 3) * np.float32(1.1e38)
        check_encode(params, [x], [np.zeros_like(x)], one_row(block_size))


@each_block
def test_the_smallest_scale(block_size: int) -> None:
    params = KernelParams("sign", block_size=block_size)
    least = np.float32(2.0**-126)
    below = np.float32(0.999) * least  # a closer one, rounding may lift
    for magnitude, sent in ((least, True), (below, False), (np.float32(1e-45), False)):
        x = np.full(block_size, magnitude)
        x[::3] *= np.float32(-1)
        residual = np.zeros_like(x)
        payload = check_encode(params, [x], [residual], one_row(block_size))
        assert payload.any() == sent
        _native.encode(
            _native.Codec(*params), [x], [residual], one_row(block_size), (0,) * 4, payload
        )
        np.testing.assert_array_equal(residual, np.zeros_like(x) if sent else x)


@each_block
def test_zeros_have_signs(block_size: int) -> None:
    params = KernelParams("sign", block_size=block_size)
    x = np.zeros(block_size, np.float32)
    x[1::2] = -0.0
    x[-1] = block_size  # the mean is 1
    table = one_row(block_size)
    payload = check_encode(params, [x], None, table)
    out = np.empty_like(x)
    codec = _native.Codec(*params)
    assert _native.decode(codec, payload, 1, table, 1.0, [out])
    np.testing.assert_array_equal(out[:-1], np.where(np.arange(block_size - 1) % 2, -1, 1))
    residual = np.full_like(x, -0.0)  # a sum of zeros is -0 only where both are
    _native.encode(codec, [x], [residual], table, (0,) * 4, payload)
    np.testing.assert_array_equal(residual[:-1], np.where(np.arange(block_size - 1) % 2, 1, -1))


def test_the_last_block_has_a_mean_of_its_own() -> None:
    params = KernelParams("sign", block_size=32)
    x = np.array([*[1.0] * 32, -2.0, 4.0, -6.0], np.float32)
    payload = check_encode(params, [x], [np.zeros_like(x)], one_row(x.size))
    assert scales_of(payload, 2).tolist() == [1.0, 4.0]
    assert payload[8:].tolist() == [0, 0, 0, 0, 0b101]
