"""Block quantisation on the CPU equals the reference, byte for byte."""

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
    check_any_bucket,
    check_any_bytes,
    check_decode,
    check_encode,
    check_numbers,
    check_reduce,
    numbers,
    one_row,
)

from gradcomp import _native
from gradcomp.reference import KernelParams

PARAMS = [
    KernelParams("quantize", bits, block_size, stochastic)
    for bits in (8, 4, 2)
    for block_size in (32, 96, 256)
    for stochastic in (False, True)
]
LARGE_BLOCKS = [  # more than the kernels hold at a time, also at an odd place of a random group
    KernelParams("quantize", bits, block_size, True)
    for bits in (8, 4, 2)
    for block_size in (1024, 1056, 4000, 5120)
]


def name(params: KernelParams) -> str:
    return f"{params.bits}-{params.block_size}-{'stochastic' if params.stochastic else 'nearest'}"


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0,) * 4, (0,) * 4, (0x9C6CA96A, 0xE17EAE66, 0xFC10ECD4, 0x5256A7D8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 4,
            (0x2A881696, 0x57012287, 0xF6C7446E, 0xA16A6732),
        ),
        (
            (0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0x59CD1DBB, 0xB8879579, 0x86B5D00C, 0xAC8B6D84),
        ),
    ],
)
def test_threefry_gives_the_known_answers(
    key: tuple[int, ...], counter: tuple[int, ...], words: tuple[int, ...]
) -> None:
    assert tuple(_native.threefry4x32(key, counter, 20)) == words


@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_every_length_at_every_misalignment(params: KernelParams) -> None:
    block = params.block_size
    lengths = range(3 * block + 2)
    if block > 32:  # around the edges of blocks, bytes and vectors
        lengths = sorted({n for n in lengths if n % 16 in (0, 1, 15) or n % block < 5})
    for numel in lengths:
        table = one_row(numel)
        g, r = numbers("special", numel, 1), numbers("normal", numel, 2)
        misalignments = range(4) if block == 32 else [numel % 4, numel % 64]
        payload = check_encode(params, [g], [r], table, misalignments=misalignments)
        check_encode(params, [r], None, table, misalignments=misalignments)
        payloads = np.concatenate([payload, payload[::-1], payload])
        check_decode(params, payloads, 3, table, [numel], 0.3, misalignments=misalignments)
        check_reduce(params, payloads, 3, r, table, 0.3, misalignments=misalignments)


@pytest.mark.parametrize("params", LARGE_BLOCKS, ids=name)
def test_blocks_longer_than_a_tile(params: KernelParams) -> None:
    for numel in (1, 1024, 1025, params.block_size, 2 * params.block_size + 77, 40000):
        table = one_row(numel)
        g, r = numbers("normal", numel, 1), numbers("ties", numel, 2)
        payload = check_encode(params, [g], [r], table, misalignments=[1])
        both = np.concatenate([payload, payload])
        check_decode(params, both, 2, table, [numel], 0.5, misalignments=[2])
        check_reduce(params, both, 2, r, table, 0.5, misalignments=[3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_every_kind_of_number_in_every_dtype(params: KernelParams, kind: str, dtype: str) -> None:
    check_numbers(params, kind, dtype)


@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_scales_at_the_ends_of_their_range(params: KernelParams) -> None:
    qmax = 2 ** (params.bits - 1) - 1
    least_normal = int(np.float32(2.0**-126 * qmax).view(np.uint32))
    largest = 0x7F7FFFFF
    for center in (least_normal, largest - 300, 0x3F800000):
        for bits in range(center - 20, min(center + 300, largest) + 1, 3):
            block = np.full(params.block_size, np.uint32(bits).view(np.float32))
            block[1::2] *= np.float32(-0.37)
            block[2::3] *= np.float32(0.5)
            check_encode(params, [block], [np.zeros_like(block)], one_row(block.size))


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("absmax", [1.0, 0.1, 1e-37, 5.877472e-39, 1.7e38, 3.4028235e38])
def test_the_largest_random_bits_do_not_leave_the_range(bits: int, absmax: float) -> None:
    # 2^18 elements at the ends of their range meet all values of 16 random bits, some with 1 ulp.
    x = np.full(2**18, np.float32(absmax))
    x[1::2] *= np.float32(-1)
    x[2::3] = np.nextafter(x[2::3], np.float32(0))
    for block_size in (32, 256):
        params = KernelParams("quantize", bits, block_size, True)
        check_encode(params, [x], [np.zeros_like(x)], one_row(x.size))


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("block_size", [256, 1024])
def test_halves_of_a_step_round_to_even(block_size: int, bits: int) -> None:
    qmax = 2 ** (bits - 1) - 1
    halves = np.resize(np.arange(-2 * qmax, 2 * qmax + 1) / 2, (4, 255))
    x = np.insert(halves, 0, qmax, axis=1).astype(np.float32).ravel()  # every block has a step of 1
    params = KernelParams("quantize", bits, block_size)
    payload = check_encode(params, [x], None, one_row(x.size))
    out = np.empty_like(x)
    codec = _native.Codec(*params)
    assert _native.decode(codec, payload, 1, one_row(x.size), 1.0, [out])
    np.testing.assert_array_equal(out, np.rint(x))


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_sums_too_large_for_the_caches(bits: int) -> None:
    # Kernels write them another way where memory is aligned for it, here at 0 and 16.
    params = KernelParams("quantize", bits, 256)
    numel = (16 << 20) // 4 + 300
    table = one_row(numel)
    payload = np.zeros(_native.payload_size(_native.Codec(*params), table), np.uint8)
    _native.encode(_native.Codec(*params), [numbers("normal", numel)], None, table, RNG, payload)
    other = payload.copy()
    other[:4] = np.float32(np.inf).reshape(1).view(np.uint8)
    for second in (payload, other):
        both = np.concatenate([payload, second])
        check_decode(params, both, 2, table, [numel], 0.5, misalignments=[0, 4, 16])


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_payloads_of_gradients_too_large_for_the_caches(bits: int, stochastic: bool) -> None:
    # Kernels write codes another way where memory is aligned for it: here a multiple of 16 bytes of
    # scales is before them.
    params = KernelParams("quantize", bits, 256, stochastic)
    x = numbers("normal", (16 << 20) // 4 + 4 * 256)
    for residuals in (None, [numbers("normal", x.size, 2)]):
        check_encode(params, [x], residuals, one_row(x.size), misalignments=[0, 4, 16])


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_random_bits_depend_on_the_place_in_the_tensor_only(bits: int) -> None:
    params = KernelParams("quantize", bits, 32, True)
    numel = 7 * 32 + 5
    x = numbers("normal", numel)
    for cuts in itertools.combinations(range(32, numel, 32), 2):
        ends = [0, *cuts, numel]
        table = np.array([[0, a, b - a, 0, 9] for a, b in itertools.pairwise(ends)], np.int64)
        check_encode(params, [x], [x], table)


@pytest.mark.parametrize(
    "rng", [(-1, 2**63, 0, 0), (2**64 - 1, 0, 2**31 - 1, 1), (1 << 32, 1 << 32, 1, 1), (0, 0, 0, 0)]
)
def test_every_part_of_the_random_key_counts(rng: tuple[int, int, int, int]) -> None:
    x = numbers("normal", 777)
    table = one_row(777, stream=2**32 - 1)
    check_encode(KernelParams("quantize", 4, 256, True), [x], None, table, rng)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_buckets(data: st.DataObject) -> None:
    params = KernelParams(
        "quantize",
        data.draw(st.sampled_from([8, 4, 2])),
        data.draw(st.sampled_from([32, 64, 160])),
        data.draw(st.booleans()),
    )
    check_any_bucket(params, data)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(PARAMS), st.integers(0, 700), st.integers(1, 4), st.randoms())
def test_any_bytes_decode(params: KernelParams, numel: int, world: int, random: object) -> None:
    check_any_bytes(params, numel, world, random)
