"""Top-k on CUDA equals the reference, byte for byte, and no payload harms it; on the CPU."""

from __future__ import annotations

import itertools
import random

import cuda_library
import numpy as np
import pytest
from cuda_cases import SEEDS, Placed, check_decode, check_encode
from kernel_cases import DTYPES, KINDS, Array, assert_same, numbers, one_row

from gradcomp import reference
from gradcomp.reference import KernelParams

TILE = 4096  # elements that a block scans; segments from one on are sampled
PARAMS = [
    *(KernelParams("topk", values=values) for values in DTYPES),
    KernelParams("topk", 8, 32, False, "quantize"),
    KernelParams("topk", 4, 256, True, "quantize"),
    KernelParams("topk", 2, 2080, True, "quantize"),
    KernelParams("topk", 0, 32, False, "float8_e4m3"),
    KernelParams("topk", 0, 2080, False, "float8_e5m2"),
    KernelParams("topk", 8, 1 << 40, False, "quantize"),
    KernelParams("topk", 0, 96, False, "sign"),
    KernelParams("topk", 0, 2080, False, "sign"),
]
EXACT, HALF = PARAMS[:2]


def name(params: KernelParams) -> str:
    return f"{params.values}-{params.bits}-{params.block_size}"


def check(params: KernelParams, g: Array, r: Array, kept: int, **options: object) -> None:
    """With and without a residual; the payloads of both as two ranks'."""
    n = g.size
    one = check_encode(params, [g], [r], one_row(n, kept), **options)
    two = check_encode(params, [g], None, one_row(n, kept))
    check_decode(params, np.concatenate([one, two]), 2, one_row(n, kept), [n], 0.3)


@pytest.mark.parametrize("numel", [1, 2, 3, 31, 32, 33, 255, 257, 1000, TILE - 1, TILE, TILE + 1])
def test_lengths(numel: int) -> None:
    g, r = numbers("special", numel, 1), numbers("ties", numel, 2)
    for kept in sorted({0, 1, numel // 100, numel // 2, numel - 1, numel}):
        check(HALF, g, r, kept)


def test_nothing() -> None:
    check_encode(HALF, [np.empty(0, np.float32)], None, one_row(0))
    g, r = numbers("special", 100, 1), numbers("normal", 100, 2)
    check(HALF, np.empty(0, np.float32), np.empty(0, np.float32), 0)
    check(HALF, g, r, 0)
    n = TILE + 5  # what keeps nothing is not sampled
    check(HALF, numbers("normal", n, 1), numbers("normal", n, 2), 0)


@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_values(params: KernelParams) -> None:
    n = 2 * TILE + 77
    for kind, kept in [("special", 1), ("normal", 83), ("huge", 2500), ("ties", n)]:
        g, r = numbers(kind, n, 1), numbers("special", n, 2)
        check(params, g, r, kept, in_place=True, misalignment=kept)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_numbers(kind: str) -> None:
    n = 3000
    for dtype, kept in zip(DTYPES, (7, 300, 2900), strict=True):
        g, r = numbers(kind, n, 1, dtype), numbers(kind, n, 2)
        payload = check_encode(HALF, [g], [r], one_row(n, kept), tensor_misalignment=kept % 4)
        check_encode(EXACT, [g], None, one_row(n, kept))
        check_decode(HALF, payload, 1, one_row(n, kept), [n], -1.0, [dtype])


def rows_of_an_embedding(numel: int, seed: int) -> Array:
    """Zeros but for a few whole rows: a sample finds far too many or too few of them."""
    rng = np.random.default_rng(seed)
    x = np.zeros((numel // 512, 512), np.float32)
    chosen = rng.choice(len(x), max(1, len(x) // 60), replace=False)
    x[chosen] = rng.standard_normal((len(chosen), 512))
    return np.append(x.reshape(-1), np.zeros(numel - x.size, np.float32))


LONG = 9 * TILE + 1111
NORMAL = numbers("normal", LONG)
LONG_CASES = {
    "normal": NORMAL,
    "ties": numbers("ties", LONG),
    "zeros": np.zeros(LONG),
    "equal": np.full(LONG, -1.5),
    "one huge": np.where(np.arange(LONG) == LONG - 7, 3e38, NORMAL),
    "not a number": np.where(np.arange(LONG) % 5000 == 0, np.nan, NORMAL),
    "infinite": np.where(np.arange(LONG) % 5000 == 1, -np.inf, NORMAL),
    "nearly all zero": np.where(np.arange(LONG) % 200 == 0, NORMAL, 0),
    "ascending": np.arange(LONG),
    "descending": -np.arange(LONG)[::-1],
    "layers": NORMAL * np.where(np.arange(LONG) % 10000 < 300, 1000, 1),
    "embedding 1": rows_of_an_embedding(LONG, 1),
    "embedding 2": rows_of_an_embedding(LONG, 2),
}


@pytest.mark.parametrize("case", LONG_CASES)
def test_samples(case: str) -> None:
    """Thresholds that a sample gives, good ones and misleading ones."""
    x = LONG_CASES[case].astype(np.float32)
    r = np.roll(x[::-1], 5)
    for kept in (1, LONG // 100):
        payload = check_encode(HALF, [x], [r], one_row(LONG, kept), in_place=True)
        check_decode(HALF, payload, 1, one_row(LONG, kept), [LONG], 0.5)
    check_encode(HALF, [x], None, one_row(LONG, LONG // 10))


@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_samples_find_few_candidates(kind: str) -> None:
    """All that is kept, and about what is expected beside it: nothing else tells a bad sample."""
    n, kept = LONG, LONG // 100
    for seed in range(8):
        x = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
        if kind == "ties":
            x = np.round(16 * x) / 16
        payload = np.zeros(reference.payload_size(HALF, one_row(n, kept)), np.uint8)
        left: list[Array] = []
        cuda_library.set_seed(seed)
        assert (
            cuda_library.encode(
                *(HALF, [x], None, None, one_row(n, kept), (0, 0, 0, 0), payload), left=left
            )
            == 0
        )
        candidates = int(left[0][:8].view(np.uint32)[1])  # TopKState in csrc/cuda/topk_rows.h
        assert kept <= candidates <= 6 * kept


def test_workspaces_are_as_large_as_the_manual_says() -> None:
    """0.16 bytes an element at 1 %; never more than all elements, and a sample of 256 KB."""
    one = np.zeros(1, np.float32)
    for n, kept, most in (
        (1 << 28, (1 << 28) // 100, 0.16 * (1 << 28)),
        # Just below where no sample is taken: the rank is that of nearly all of it.
        (1 << 17, 122720, 24_700 + 16 * 32 + 4 * 4096 + 8 * (1 << 17) + 4 * 122720 + 100),
        (1 << 17, 1 << 17, 24_700 + 16 * 32 + 12 * (1 << 17) + 100),
    ):
        x = np.lib.stride_tricks.as_strided(one, (n,), (0,))
        assert cuda_library.workspace_of_encode(HALF, [x], one_row(n, kept)) <= most


def test_samples_that_mislead() -> None:
    """Large elements where nobody looks, then small ones where everybody does."""
    n, kept = 3 * TILE, 100
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    r = np.zeros(n, np.float32)
    huge = np.where(np.arange(n) < 2 * TILE, 1000 * x, 0).astype(np.float32)
    for seed in SEEDS:
        for y in (x, huge):
            check_encode(EXACT, [y], [r], one_row(n, kept), seeds=[seed])


def test_more_tiles_than_threads() -> None:
    n = 1025 * TILE + 3
    x = np.random.default_rng(1).standard_normal(n, np.float32)
    check_encode(HALF, [x], None, one_row(n, 1000))


def test_segments() -> None:
    """More segments than a launch takes, of mixed dtypes and counts, cut at odd places."""
    sizes = [0, 1, 5, 3 * TILE + 1, *range(48), TILE, 700]
    rows = []
    for tensor, size in enumerate(sizes):
        cuts = [0, *([size // 3, size // 2] if size > 100 else []), size]
        rows += [
            [tensor, a, b - a, min(b - a, 1 + tensor * 7 % 90), tensor]
            for a, b in itertools.pairwise(cuts)
        ]
    table = np.array(rows, np.int64)
    dtypes = [DTYPES[i % 3] for i in range(len(sizes))]
    g = [numbers("ties", n, i, dtypes[i]) for i, n in enumerate(sizes)]
    r = [numbers("normal", n, i + 100) for i, n in enumerate(sizes)]
    for params in (HALF, PARAMS[4]):
        one = check_encode(params, g, r, table, misalignment=3, tensor_misalignment=1)
        two = check_encode(params, g, None, table)
        payloads = np.concatenate([one, two, one])
        check_decode(params, payloads, 3, table, sizes, 1 / 3, dtypes, misalignment=5)


@pytest.mark.parametrize("params", [HALF, *PARAMS[4:7]], ids=name)
def test_launches_do_not_grow_with_segments(params: KernelParams) -> None:
    """Up to 48 segments go through one chain of launches, with values of blocks too."""
    counts = []
    for rows in (1, 48, 49):
        table = np.array([[0, 40 * i, 40, 4, i] for i in range(rows)], np.int64)
        before = cuda_library.launches()
        check_encode(params, [numbers("normal", 40 * rows)], None, table)
        counts.append(cuda_library.launches() - before)
    assert counts[0] == counts[1] and counts[2] == 2 * counts[0]


@pytest.mark.parametrize("params", [EXACT, PARAMS[6]], ids=name)
def test_orders_of_threads(params: KernelParams) -> None:
    n = 2 * TILE + 5
    g, r = numbers("ties", n, 1), numbers("normal", n, 2)
    for kept in (50, n // 2):
        payload = check_encode(params, [g], [r], one_row(n, kept), seeds=SEEDS)
        payloads = np.tile(payload, 3)
        check_decode(params, payloads, 3, one_row(n, kept), [n], 1 / 3, seeds=SEEDS)


def check_any(params: KernelParams, payloads: Array, world: int, table: Array) -> bool:
    """Decodes what the reference decodes, and refuses what it refuses: whether it does."""
    n = int(table[:, 2].sum())
    given = Placed(payloads, 1)
    output = Placed(np.zeros(n, np.float32), 0)
    error, finite, bad_row = cuda_library.decode(
        params, given.array, world, table, 0.7, [output.array]
    )
    output.check("output")
    assert error == 0
    try:
        want, all_finite = reference.decode(
            params, payloads, world, table, 0.7, [(n,)], ["float32"]
        )
    except ValueError:
        assert bad_row is not None, "decoded what the reference refuses"
        return False
    assert bad_row is None, "refused what the reference decodes"
    assert finite == all_finite
    assert_same(output.array, want[0], "output")
    return True


@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_any_bytes(params: KernelParams) -> None:
    draw = random.Random(5)
    taken = 0
    for case in range(8):
        n = draw.choice([1, 3, 20, 300, 5000])
        kept = draw.randint(1, min(n, 100))
        payload = check_encode(params, [numbers("normal", n, case)], None, one_row(n, kept))
        for flips in (1, 2, 9):
            wrong = np.tile(payload, 2)
            for _ in range(flips):
                wrong[draw.randrange(wrong.size)] ^= 1 << draw.randrange(8)
            taken += check_any(params, wrong, 2, one_row(n, kept))
        noise = np.frombuffer(draw.randbytes(payload.size), np.uint8)
        for wrong in (noise, np.full_like(payload, 0xFF), np.zeros_like(payload)):
            taken += check_any(params, wrong, 1, one_row(n, kept))
    assert taken > 0


@pytest.mark.parametrize(("numel", "kept"), [(1, 1), (5, 2), (5, 5), (17, 3)])
def test_codes_of_few_positions(numel: int, kept: int) -> None:
    payload = check_encode(EXACT, [numbers("normal", numel)], None, one_row(numel, kept))
    positions = payload.size - 4 * kept
    patterns = [*range(8), 0x15, 0x1F, 0x24, 0x55, 0x80, 0xFF] if positions > 1 else range(256)
    taken = 0
    for code in itertools.product(patterns, repeat=min(positions, 2)):
        payload[: len(code)] = code
        taken += check_any(EXACT, payload, 1, one_row(numel, kept))
    assert taken >= 1


def test_codes_of_many_positions() -> None:
    """Several blocks a code: too many ones, too few, and none before the last block."""
    n, kept = 5 * TILE, 2 * TILE
    table = one_row(n, kept)
    payload = check_encode(EXACT, [numbers("normal", n)], None, table)
    check_decode(EXACT, payload, 1, table, [n], seeds=SEEDS)
    upper = slice(reference.segment_size(EXACT, n, kept) - 4 * kept - 2000, None)
    for fill in (0x00, 0xFF, 0x55):
        wrong = payload.copy()
        wrong[upper][:1500] = fill
        assert not check_any(EXACT, wrong, 1, table)
    late = payload.copy()
    late[: payload.size - 4 * kept] = 0
    late[payload.size - 4 * kept - 1025 :][:1024] = 0xFF
    assert not check_any(EXACT, late, 1, table)


def test_the_first_bad_row_is_named() -> None:
    table = np.array([[0, i * 100, 100, 10, i] for i in range(5)], np.int64)
    x = numbers("normal", 500)
    payload = check_encode(HALF, [x], None, table)
    size = payload.size // 5
    for first in range(5):
        wrong = payload.copy()
        for row in range(first, 5, 2):
            wrong[row * size : row * size + 10] = 0
        output = np.zeros(500, np.float32)
        got = cuda_library.decode(HALF, wrong, 1, table, 1.0, [output])
        assert got[0] == 0 and got[2] == first
