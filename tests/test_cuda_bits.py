"""Packing of masks and small codes on CUDA equals the reference; the kernels run on the CPU."""

from __future__ import annotations

import cuda_library
import numpy as np
import pytest
from cuda_cases import SEEDS, Placed
from kernel_cases import Array, assert_same

from gradcomp import reference

TILE = 8192
# Around the eight codes of a word, vectors of 16 bytes, warps, tiles.
LENGTHS = (*range(0, 18), 31, 32, 33, 127, 255, 256, 257, 2047, 2049, TILE - 1, TILE, TILE + 1)
every_width = pytest.mark.parametrize("bits", [1, 2, 4, 8])


def codes(numel: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, numel]).integers(0, 256, numel, np.uint8)


def check(x: Array, bits: int, misalignment: int = 0, seed: int = 1) -> None:
    """Packs, and unpacks what is packed and other bytes, as the reference does."""
    cuda_library.set_seed(seed)
    want = reference.pack_bits(x, bits)
    given, out = Placed(x, misalignment), Placed(np.full_like(want, 7), 3 * misalignment)
    assert cuda_library.pack_codes(given.array, bits, out.array) == 0
    assert_same(out.array, want, "packed")
    out.check("packed")
    assert_same(given.array, x, "the codes")
    for packed in (want, codes(want.size, 1)):
        given, out = Placed(packed, misalignment), Placed(np.full_like(x, 7), 5 * misalignment)
        assert cuda_library.unpack_codes(given.array, bits, out.array) == 0
        assert_same(out.array, reference.unpack_bits(packed, bits, x.size), "codes")
        out.check("codes")


@every_width
def test_all_lengths(bits: int) -> None:
    for n in (*LENGTHS, 3 * TILE + 5):
        check(codes(n), bits)


@every_width
def test_every_misalignment(bits: int) -> None:
    for at in range(16):
        for n in (3, 45, TILE + 21):
            check(codes(n), bits, at, seed=at)


@every_width
def test_orders_of_threads(bits: int) -> None:
    for seed in SEEDS:
        check(codes(2 * TILE + 9), bits, misalignment=1, seed=seed)


def test_widths_that_are_none() -> None:
    x, invalid = codes(16), 1
    for bits in (0, 3, 16):
        assert cuda_library.pack_codes(x, bits, x.copy()) == invalid
        assert cuda_library.unpack_codes(x, bits, x.copy()) == invalid
