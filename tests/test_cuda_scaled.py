"""The CUDA kernels with a scale a block equal the reference, byte for byte; they run on the CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cuda_cases import SEEDS, check_decode, check_encode
from kernel_cases import DTYPES, KINDS, Array, numbers, one_row

from gradcomp.reference import KernelParams

CODERS = (
    *(("quantize", bits, stochastic) for bits in (8, 4, 2) for stochastic in (False, True)),
    *(("float8_e4m3", 0, False), ("float8_e5m2", 0, False), ("sign", 0, False)),
)
TILE = {"sign": 8192}
"""Elements of a tile, 4096 in all other families: larger blocks take other kernels."""


def params_of(coder: tuple[str, int, bool], block_size: int) -> KernelParams:
    family, bits, stochastic = coder
    return KernelParams(family, bits, block_size, stochastic)


coders = pytest.mark.parametrize(
    "coder", CODERS, ids=lambda c: f"{c[0]}{c[1] or ''}{'-stochastic' * c[2]}"
)


@coders
def test_all_lengths(coder: tuple[str, int, bool]) -> None:
    tile = TILE.get(coder[0], 4096)
    lengths = (*range(0, 18), 31, 32, 33, 127, 255, 256, 257, 1000, tile - 1, tile, tile + 1)
    params = params_of(coder, 256)
    for n in (*lengths, 2 * tile + 300):
        g, r = numbers("special", n, 1), numbers("normal", n, 2)
        one = check_encode(params, [g], [r], one_row(n))
        two = check_encode(params, [r], None, one_row(n))
        check_decode(params, np.concatenate([one, two]), 2, one_row(n), [n], 0.5)


@coders
def test_all_block_sizes(coder: tuple[str, int, bool]) -> None:
    """Blocks that fill a tile and that do not, the largest that fit, larger ones, huge ones."""
    tile = TILE.get(coder[0], 4096)
    for block in (32, 64, 96, 160, 512, 1024, 1056, tile - 32, tile, tile + 32, 3 * tile + 64):
        params = params_of(coder, block)
        for n in (block // 2 + 3, 2 * block - 1, 2 * block, tile + block + 5):
            g, r = numbers("normal", n, 1), numbers("normal", n, 2)
            payload = check_encode(params, [g], [r], one_row(n), misalignment=block % 7)
            check_decode(params, payload, 1, one_row(n), [n], misalignment=block % 7)
    params = params_of(coder, 1 << 40)
    g = numbers("normal", 2 * tile + 77)
    payload = check_encode(params, [g], [g], one_row(g.size))
    check_decode(params, payload, 1, one_row(g.size), [g.size])


@coders
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_numbers(coder: tuple[str, int, bool], dtype: str) -> None:
    n = 3000
    for kind in KINDS:
        for block in (32, 1 << 14):
            g, r = numbers(kind, n, 1, dtype), numbers(kind, n, 2)
            params = params_of(coder, block)
            payload = check_encode(params, [g], [r], one_row(n), in_place=kind == "ties")
            check_decode(params, payload, 1, one_row(n), [n], 1.0, [dtype])


@coders
def test_blocks_of_one_kind(coder: tuple[str, int, bool]) -> None:
    """A block each of equal elements, zeros of either sign, one huge value, infinity or NaN."""
    blocks = [np.full(64, value, np.float32) for value in (0.0, -0.0, 1.5, -1e-38, 3.4e38, 1e-45)]
    for odd in (3e38, np.inf, -np.inf, np.nan):
        block = numbers("normal", 64)
        block[37] = odd
        blocks.append(block)
    g = np.concatenate(blocks)
    for block in (64, 32, 1 << 14):
        params = params_of(coder, block)
        payload = check_encode(params, [g], [np.zeros_like(g)], one_row(g.size))
        check_decode(params, np.tile(payload, 3), 3, one_row(g.size), [g.size], 1 / 3)
    for b in blocks:
        check_encode(params_of(coder, 1 << 14), [b], None, one_row(64))


def table_of(sizes: list[int], cut: int) -> Array:
    """Rows of tensors, of which those longer than two blocks are cut in three."""
    rows = []
    for tensor, size in enumerate(sizes):
        inner = [cut, size // cut // 2 * cut] if size > 4 * cut else []
        for a, b in itertools.pairwise([0, *inner, size]):
            rows.append([tensor, a, b - a, 0, 7 * tensor])
    return np.array(rows, np.int64)


@coders
def test_segments_anywhere(coder: tuple[str, int, bool]) -> None:
    """More segments than a launch takes, of mixed dtypes, cut at blocks; five ranks."""
    for block in (32, 96, 1 << 14):
        params = params_of(coder, block)
        sizes = [0, 1, 5, 5000, *range(1, 100, 2), 9000, 3 * block + 9]
        table = table_of(sizes, block)
        dtypes = [DTYPES[i % 3] for i in range(len(sizes))]
        g = [numbers("normal", n, i, dtypes[i]) for i, n in enumerate(sizes)]
        r = [numbers("normal", n, i + 100) for i, n in enumerate(sizes)]
        payload = check_encode(params, g, r, table, misalignment=3, tensor_misalignment=1)
        check_encode(params, g, r, table, seeds=SEEDS)
        # Bytes that no encoder wrote decode to something, too.
        payloads = np.concatenate([payload, payload[::-1], payload, payload, payload])
        check_decode(params, payloads, 5, table, sizes, 0.2, dtypes, misalignment=5, seeds=SEEDS)
        check_decode(params, payloads, 5, table, sizes, 0.2, dtypes, tensor_misalignment=1)


@coders
def test_every_misalignment(coder: tuple[str, int, bool]) -> None:
    n = 4096 + 300
    g, r = numbers("normal", n, 1), numbers("normal", n, 2)
    params = params_of(coder, 256)
    for at in range(16):
        payload = check_encode(params, [g], [r], one_row(n), misalignment=at)
        check_decode(params, payload, 1, one_row(n), [n], misalignment=at, seeds=[at])
