"""Dropout by masks on CUDA equals the reference; the kernels run on the CPU."""

from __future__ import annotations

import cuda_library
import numpy as np
import pytest
from cuda_cases import SEEDS, Placed
from kernel_cases import DTYPES, KINDS, Array, assert_same, dtype_of, numbers

from gradcomp import reference

DRAWN = 2048  # elements of a block that draws
KEY, COUNTER = 0x0123456789ABCDEF, (2**64 - 21, 2**64 - 1)
INVALID = 1
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def tile_of(dtype: str) -> int:
    """Elements of a block that applies a mask."""
    return 8192 // dtype_of(dtype).itemsize


def any_mask(numel: int) -> Array:
    return np.random.default_rng(numel).integers(0, 256, -(-numel // 8), np.uint8)


def check_draw(
    numel: int,
    misalignment: int = 0,
    *,
    counter: tuple[int, int] = COUNTER,
    bits: int = 23,
    threshold: int = 0x2AAAAA,
    seed: int = 1,
) -> None:
    cuda_library.set_seed(seed)
    want = reference.draw_mask(KEY, counter, bits, threshold, numel)
    out = Placed(np.full_like(want, 7), misalignment)
    assert cuda_library.draw_mask(KEY, counter, bits, threshold, out.array, numel) == 0
    assert_same(out.array, want, f"mask of {numel}")
    out.check("mask")


def check_apply(
    x: Array, scale: float = 1.25, at: tuple[int, int, int] = (0, 0, 0), seed: int = 1
) -> None:
    """Of x, mask and result at these addresses: in elements, bytes, elements; then in place."""
    cuda_library.set_seed(seed)
    packed = any_mask(x.size)
    want = reference.apply_mask(x, packed, scale)
    given, mask = Placed(x, at[0] * x.itemsize), Placed(packed, at[1])
    out = Placed(np.full_like(x, 7), at[2] * x.itemsize)
    assert cuda_library.apply_mask(given.array, mask.array, scale, out.array) == 0
    assert_same(out.array, want, "result")
    assert_same(given.array, x, "x")
    out.check("result")
    assert cuda_library.apply_mask(given.array, mask.array, scale, given.array) == 0
    assert_same(given.array, want, "result in place")
    given.check("x")


def test_masks_of_all_lengths() -> None:
    # Around bytes, warps and blocks; the counter passes 2**128 within them.
    for numel in (*range(40), 255, 256, 257, DRAWN - 1, DRAWN, DRAWN + 1, 3 * DRAWN + 5):
        check_draw(numel)


def test_masks_at_every_misalignment() -> None:
    for at in range(16):
        check_draw(DRAWN + 77, at, seed=at)


@pytest.mark.parametrize("counter", [(2**32 - 3, 5), (2**64 - 3, 0), (2**64 - 3, 2**32 - 1)])
def test_the_counter_carries(counter: tuple[int, int]) -> None:
    check_draw(99, counter=counter)


@pytest.mark.parametrize("bits", [1, 7, 10, 23])
def test_thresholds(bits: int) -> None:
    for threshold in (0, 1, 2**bits // 3, 2**bits - 1, 2**bits):
        check_draw(300, bits=bits, threshold=threshold)


@every_dtype
def test_all_lengths(dtype: str) -> None:
    tile = tile_of(dtype)
    for numel in (*range(20), 127, 255, 256, 257, tile - 1, tile, tile + 1, 3 * tile + 5):
        check_apply(numbers("special", numel, dtype=dtype))


@every_dtype
def test_every_misalignment(dtype: str) -> None:
    for at in range(16 // dtype_of(dtype).itemsize):
        x = numbers("normal", 2 * tile_of(dtype) + 21, dtype=dtype)
        for places in ((at, 3 * at, at), (at, 0, 0), (0, 1, at)):
            check_apply(x, 1.1, places, seed=at + 1)


@every_dtype
@pytest.mark.parametrize("kind", KINDS)
def test_all_numbers(kind: str, dtype: str) -> None:
    for scale in (0.0, 1.1, 1e30, np.inf):
        check_apply(numbers(kind, tile_of(dtype) + 9, dtype=dtype), scale)


def test_orders_of_threads() -> None:
    for seed in SEEDS:
        check_draw(2 * DRAWN + 9, seed=seed)
        check_apply(numbers("normal", 2 * tile_of("float32") + 9), at=(1, 1, 1), seed=seed)


def test_what_is_not_launched() -> None:
    mask, x = np.zeros(8, np.uint8), np.zeros(64, np.float32)
    before = cuda_library.launches()
    for bits, threshold in ((0, 0), (24, 0), (7, 129)):
        assert cuda_library.draw_mask(KEY, COUNTER, bits, threshold, mask, 64) == INVALID
    # More blocks than a grid has; one fewer would write past the mask.
    assert cuda_library.draw_mask(KEY, COUNTER, 7, 5, mask, 2**31 * DRAWN) == INVALID
    for dtype in DTYPES:
        huge = np.lib.stride_tricks.as_strided(x.astype(dtype_of(dtype)), (2**44,), (0,))
        assert cuda_library.apply_mask(huge, mask, 1.0, huge) == INVALID
    assert cuda_library.draw_mask(KEY, COUNTER, 7, 5, mask, 0) == 0
    assert cuda_library.apply_mask(x[:0], mask, 1.0, x) == 0
    assert cuda_library.launches() == before
    assert not mask.any()
