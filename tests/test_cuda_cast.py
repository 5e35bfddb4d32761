"""Casts on CUDA equal the reference, byte for byte; the kernels run on the CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cuda_cases import SEEDS, check_decode, check_encode
from kernel_cases import CASTS, DTYPES, KINDS, numbers, one_row

from gradcomp.reference import KernelParams

TILE = 2048
# Around quads, vectors of 16 bytes, warps, tiles.
LENGTHS = (*range(0, 10), 31, 32, 33, 127, 1023, 1024, TILE - 1, TILE, TILE + 1, 3 * TILE + 5)


@pytest.mark.parametrize("params", CASTS, ids=lambda p: p.family)
def test_all_lengths(params: KernelParams) -> None:
    for n in LENGTHS:
        g, r = numbers("special", n, 1), numbers("normal", n, 2)
        one = check_encode(params, [g], [r], one_row(n))
        two = check_encode(params, [g], None, one_row(n))
        check_decode(params, np.concatenate([one, two]), 2, one_row(n), [n], 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("params", CASTS, ids=lambda p: p.family)
def test_all_numbers(params: KernelParams, dtype: str) -> None:
    n = TILE + 100
    for kind in KINDS:
        g, r = numbers(kind, n, 1, dtype), numbers(kind, n, 2)
        payload = check_encode(params, [g], [r], one_row(n), in_place=kind == "ties")
        check_decode(params, payload, 1, one_row(n), [n], 1.0, [dtype])


@pytest.mark.parametrize("params", CASTS, ids=lambda p: p.family)
def test_segments_anywhere(params: KernelParams) -> None:
    """More segments than a launch takes, of mixed dtypes, cut at odd places; three ranks."""
    sizes = [0, 1, 5, TILE, 3 * TILE + 1, *range(60), 4000]
    rows = []
    for tensor, size in enumerate(sizes):
        cuts = [0, *([size // 3, size // 2] if size > 9 else []), size]
        rows += [[tensor, a, b - a, 0, 0] for a, b in itertools.pairwise(cuts)]
    table = np.array(rows, np.int64)
    dtypes = [DTYPES[i % 3] for i in range(len(sizes))]
    g = [numbers("special", n, i, dtypes[i]) for i, n in enumerate(sizes)]
    r = [numbers("normal", n, i + 100) for i, n in enumerate(sizes)]
    payload = check_encode(params, g, r, table, misalignment=3, tensor_misalignment=1)
    check_encode(params, g, r, table, seeds=SEEDS)
    payloads = np.concatenate([payload, payload[::-1], payload])
    check_decode(params, payloads, 3, table, sizes, 1 / 3, dtypes, misalignment=5, seeds=SEEDS)
    check_decode(params, payloads, 3, table, sizes, 1 / 3, dtypes, tensor_misalignment=1)


@pytest.mark.parametrize("params", CASTS, ids=lambda p: p.family)
def test_every_misalignment(params: KernelParams) -> None:
    n = TILE + 7
    g, r = numbers("normal", n, 1), numbers("normal", n, 2)
    for at in range(16):
        payload = check_encode(params, [g], [r], one_row(n), misalignment=at)
        check_decode(params, payload, 1, one_row(n), [n], misalignment=at, seeds=[at])
