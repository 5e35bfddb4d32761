"""Eight-bit floats and signs on the CPU equal the reference, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    DTYPES,
    KINDS,
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

FAMILIES = ("float8_e4m3", "float8_e5m2", "sign")
PARAMS = [
    KernelParams(family, block_size=block_size)
    for family in FAMILIES
    for block_size in (32, 96, 128, 512)
]
LARGE_BLOCKS = [  # more than the kernels hold at a time, also by an odd number of bytes
    KernelParams(family, block_size=block_size)
    for family in FAMILIES
    for block_size in (288, 1056, 4000, 5120)
]


def name(params: KernelParams) -> str:
    return f"{params.family}-{params.block_size}"


def check_all(params: KernelParams, numel: int, misalignments: list[int]) -> None:
    """Every operation, on one tensor in one piece."""
    table = one_row(numel)
    g, r = numbers("special", numel, 1), numbers("normal", numel, 2)
    payload = check_encode(params, [g], [r], table, misalignments=misalignments)
    other = check_encode(params, [r], None, table, misalignments=misalignments)
    payloads = np.concatenate([payload, other, payload[::-1]])
    check_decode(params, payloads, 3, table, [numel], 0.3, misalignments=misalignments)
    check_reduce(params, payloads, 3, r, table, 0.3, misalignments=misalignments)
    check_reduce(params, payloads, 3, None, table, 0.3)


@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_every_length_at_every_misalignment(params: KernelParams) -> None:
    block = params.block_size
    lengths = range(3 * block + 2)
    if block > 32:  # around the edges of blocks, bytes and vectors
        lengths = sorted({n for n in lengths if n % 32 in (0, 1, 31) or n % block < 10})
    for numel in lengths:
        check_all(params, numel, [0, 1, 2, 3] if block == 32 else [numel % 4, numel % 64])


@pytest.mark.parametrize("params", LARGE_BLOCKS, ids=name)
def test_blocks_longer_than_a_tile(params: KernelParams) -> None:
    block = params.block_size
    for numel in (1, 511, 513, block - 1, block, 2 * block + 77, 40000):
        check_all(params, numel, [numel % 4])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", [*PARAMS, *LARGE_BLOCKS], ids=name)
def test_every_kind_of_number_in_every_dtype(params: KernelParams, kind: str, dtype: str) -> None:
    check_numbers(params, kind, dtype)


@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_zeros_of_both_signs(params: KernelParams) -> None:
    for x in (np.zeros(600, np.float32), np.full(600, -0.0, np.float32)):
        residual = np.where(np.arange(600) < 300, np.float32(0), np.float32(-0.0))
        payload = check_encode(params, [x], [residual], one_row(600))
        assert not payload.any()
        mixed = x.copy()
        mixed[::7] = numbers("normal", 86)
        check_encode(params, [mixed], [residual], one_row(600))


@pytest.mark.parametrize("params", PARAMS, ids=name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_value_spoils_its_block_and_no_other(params: KernelParams, bad: float) -> None:
    block = params.block_size
    numel = 3 * block + 5
    for at in (0, block - 1, block, 2 * block - 1, numel - 1):
        x = numbers("normal", numel)
        x[at] = bad
        payload = check_encode(params, [x], [np.zeros_like(x)], one_row(numel))
        out = np.empty_like(x)
        codec = _native.Codec(*params)
        assert not _native.decode(codec, payload, 1, one_row(numel), 1.0, [out])
        np.testing.assert_array_equal(np.isnan(out), np.arange(numel) // block == at // block)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_buckets(data: st.DataObject) -> None:
    params = KernelParams(
        data.draw(st.sampled_from(FAMILIES)), block_size=data.draw(st.sampled_from([32, 64, 160]))
    )
    check_any_bucket(params, data)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(PARAMS), st.integers(0, 700), st.integers(1, 4), st.randoms())
def test_any_bytes_decode(params: KernelParams, numel: int, world: int, random: object) -> None:
    check_any_bytes(params, numel, world, random)
