"""Exact top-k on the CPU equals the reference, byte for byte, and no payload harms it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    DTYPES,
    KINDS,
    RNG,
    Array,
    check_decode,
    check_encode,
    float_arrays,
    numbers,
    one_row,
    tables,
)

from gradcomp.reference import KernelParams

PARAMS = [
    *(KernelParams("topk", values=values) for values in DTYPES),
    KernelParams("topk", 8, 32, False, "quantize"),
    KernelParams("topk", 4, 256, True, "quantize"),
    KernelParams("topk", 2, 2080, True, "quantize"),
    KernelParams("topk", 0, 32, False, "float8_e4m3"),
    KernelParams("topk", 0, 2080, False, "float8_e5m2"),
    KernelParams("topk", 0, 96, False, "sign"),
    KernelParams("topk", 0, 2080, False, "sign"),
]
HALF = PARAMS[1]
SAMPLED = 1 << 17  # elements; shorter ones take a smaller sample


def name(params: KernelParams) -> str:
    return f"{params.values}-{params.bits}-{params.block_size}"


@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_every_length_at_every_misalignment(params: KernelParams) -> None:
    for numel in [*range(67), *range(126, 131), 1023, 1024, 1025, 4095, 4096, 4097, 9001]:
        g, r = numbers("special", numel, 1), numbers("ties", numel, 2)
        for kept in {0, min(1, numel), numel // 100, numel // 2, max(numel - 1, 0), numel}:
            table = one_row(numel, kept)
            misalignments = [numel % 4, (numel + 1) % 64]
            payload = check_encode(params, [g], [r], table, misalignments=misalignments)
            two = check_encode(params, [r], None, table)
            both = np.concatenate([payload, two])
            check_decode(params, both, 2, table, [numel], 0.3, misalignments=misalignments)


@pytest.mark.parametrize("numel", [(16 << 20) // 4 + 300, (16 << 20) // 4 + 301])
def test_sums_too_large_for_the_caches(numel: int) -> None:
    # Written another way where memory is aligned for it, here at 0 and 16.
    table = one_row(numel, numel // 100)
    payload = check_encode(HALF, [numbers("normal", numel)], None, table)
    other = check_encode(HALF, [numbers("special", numel)], None, table)  # infinity and NaN
    for second in (payload, other):
        both = np.concatenate([payload, second])
        check_decode(HALF, both, 2, table, [numel], 0.5, misalignments=[0, 4, 16])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_every_kind_of_number_in_every_dtype(params: KernelParams, kind: str, dtype: str) -> None:
    numel = 3000
    g, r = numbers(kind, numel, 1, dtype), numbers(kind, numel, 2)
    for kept in (7, 300, 2900):
        table = one_row(numel, kept)
        payload = check_encode(params, [g], [r], table)
        check_encode(params, [g], None, table)
        check_decode(params, payload, 1, table, [numel], -1.0, [dtype])


def rows_of_an_embedding(numel: int, seed: int) -> Array:
    """Zeros but for a few whole rows: a sample finds far too many or too few of them."""
    rng = np.random.default_rng(seed)
    x = np.zeros((numel // 512, 512), np.float32)
    chosen = rng.choice(len(x), len(x) // 60, replace=False)
    x[chosen] = rng.standard_normal((len(chosen), 512))
    return np.append(x.reshape(-1), np.zeros(numel - x.size, np.float32))


def layers_of_different_scale(numel: int) -> Array:
    return numbers("normal", numel) * np.where(np.arange(numel) % 40000 < 900, 1000, 1)


LONG = SAMPLED + 1111
LONG_CASES = {
    "normal": numbers("normal", LONG),
    "ties": numbers("ties", LONG),
    "special": numbers("special", LONG),
    "zeros": np.zeros(LONG, np.float32),
    "equal": np.full(LONG, -1.5, np.float32),
    "nearly all zero": np.where(np.arange(LONG) % 200 == 0, numbers("normal", LONG), 0),
    "ascending": np.arange(LONG, dtype=np.float32),
    "descending": -np.arange(LONG, dtype=np.float32)[::-1],
    "layers": layers_of_different_scale(LONG),
    **{f"embedding {seed}": rows_of_an_embedding(LONG, seed) for seed in range(8)},
}


@pytest.mark.parametrize("case", LONG_CASES)
def test_long_tensors_of_every_distribution(case: str) -> None:
    x = LONG_CASES[case].astype(np.float32)
    r = np.roll(x[::-1], 5)
    for kept in (13, LONG // 1000, LONG // 100, LONG // 10, LONG - 5):
        table = one_row(LONG, kept)
        payload = check_encode(HALF, [x], [r], table, misalignments=[1])
        check_encode(HALF, [x], None, table)
        check_decode(HALF, payload, 1, table, [LONG], 0.5)


def test_many_candidates_of_which_a_sample_tells_nothing() -> None:
    """One in 32 is small, and nothing else is where one in 32 is looked at."""
    place = np.arange(LONG, dtype=np.float32)
    x = np.where(place % (LONG // 4096) == 0, place, place + np.float32(1e6))
    for kept in (LONG // 2, LONG - LONG // 50):
        check_encode(HALF, [x], [np.zeros_like(x)], one_row(LONG, kept))


def test_the_same_position_from_every_rank() -> None:
    x = numbers("normal", 5000)
    table = one_row(5000, 50)
    payload = check_encode(PARAMS[0], [x], None, table)
    for world in (1, 2, 7):
        check_decode(PARAMS[0], np.tile(payload, world), world, table, [5000], 1 / world)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_buckets(data: st.DataObject) -> None:
    params = data.draw(st.sampled_from(PARAMS))
    sizes, table = data.draw(tables(64, keeps=True))
    gradients = [data.draw(float_arrays(n)) for n in sizes]
    residuals = [numbers("ties", n) for n in sizes]
    misalignment = [data.draw(st.integers(0, 63))]
    one = check_encode(params, gradients, residuals, table, RNG, misalignment)
    two = check_encode(params, residuals, None, table, RNG, misalignment)
    dtypes = [data.draw(st.sampled_from(DTYPES)) for _ in sizes]
    both = np.concatenate([one, two])
    check_decode(params, both, 2, table, sizes, 0.5, dtypes, misalignment)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PARAMS), st.integers(1, 300), st.data())
def test_a_payload_with_a_few_wrong_bits(
    params: KernelParams, numel: int, data: st.DataObject
) -> None:
    kept = data.draw(st.integers(1, numel))
    table = one_row(numel, kept)
    payload = check_encode(params, [numbers("normal", numel)], None, table)
    for bit in data.draw(st.lists(st.integers(0, 8 * payload.size - 1), min_size=1, max_size=4)):
        payload[bit // 8] ^= 1 << bit % 8
    check_decode(params, payload, 1, table, [numel], misalignments=[0, 1])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PARAMS), st.integers(1, 20), st.integers(1, 3), st.data())
def test_any_bytes_decode_or_are_refused(
    params: KernelParams, numel: int, world: int, data: st.DataObject
) -> None:
    kept = data.draw(st.integers(1, numel))
    table = one_row(numel, kept)
    size = check_encode(params, [numbers("normal", numel)], None, table).size
    payloads = data.draw(st.binary(min_size=world * size, max_size=world * size))
    check_decode(params, np.frombuffer(payloads, np.uint8), world, table, [numel])


@pytest.mark.parametrize(("numel", "kept"), [(1, 1), (3, 1), (3, 2), (5, 2), (5, 5), (17, 3)])
def test_many_codes_of_few_positions(numel: int, kept: int) -> None:
    table = one_row(numel, kept)
    payload = check_encode(PARAMS[0], [numbers("normal", numel)], None, table)
    positions = payload.size - 4 * kept
    patterns = [*range(34), 0x55, 0x80, 0xFF] if positions > 1 else range(256)
    taken = 0
    for code in itertools.product(patterns, repeat=min(positions, 2)):
        payload[: len(code)] = code
        taken += check_decode(PARAMS[0], payload, 1, table, [numel])
    assert taken >= 1
