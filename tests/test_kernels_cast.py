"""Casts on the CPU equal the reference, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    CASTS,
    DTYPES,
    KINDS,
    check_any_bucket,
    check_decode,
    check_encode,
    check_reduce,
    numbers,
    one_row,
)

from gradcomp.reference import KernelParams

TILE = 256  # elements that the kernels process at a time


@pytest.mark.parametrize("params", CASTS, ids=lambda p: p.family)
def test_every_length_at_every_misalignment(params: KernelParams) -> None:
    for numel in [*range(131), *range(TILE - 2, TILE + 3), 3 * TILE + 1]:
        table = one_row(numel)
        g, r = numbers("special", numel, 1), numbers("normal", numel, 2)
        payload = check_encode(params, [g], [r], table, misalignments=range(4))
        check_encode(params, [g], None, table, misalignments=[numel % 64])
        payloads = np.concatenate([payload, payload[::-1], payload])
        check_decode(params, payloads, 3, table, [numel], 0.3, misalignments=range(4))
        check_reduce(params, payloads, 3, r, table, 0.3, misalignments=range(4))
        check_reduce(params, payloads, 3, None, table, 0.3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", CASTS, ids=lambda p: p.family)
def test_every_kind_of_number_in_every_dtype(params: KernelParams, kind: str, dtype: str) -> None:
    numel = 1500
    g, r = numbers(kind, numel, 1, dtype), numbers(kind, numel, 2)
    payload = check_encode(params, [g], [r], one_row(numel), misalignments=[0, 1])
    check_encode(params, [g], None, one_row(numel))
    for scale in (1.0, -0.0, 1e-30, float("inf"), float("nan")):
        check_decode(params, payload, 1, one_row(numel), [numel], scale, [dtype], [0, 1])


@pytest.mark.parametrize("output", DTYPES)
@pytest.mark.parametrize("family", ["float16", "bfloat16"])
def test_every_16_bit_payload_decodes(family: str, output: str) -> None:
    every = np.arange(2**16, dtype="<u2").view(np.uint8)
    check_decode(KernelParams(family), every, 1, one_row(2**16), [2**16], dtypes=[output])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_gradient_encodes(dtype: str) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    gradient = bits.view(numbers("normal", 0, dtype=dtype).dtype)
    for params in CASTS:
        check_encode(params, [gradient], [numbers("tiny", 2**16)], one_row(2**16))


@pytest.mark.parametrize("family", ["float16", "bfloat16"])
def test_every_rounding_boundary(family: str) -> None:
    # Halfway between neighbours, exactly and one place to either side.
    shift, first, last = (
        (13, 0x33000000, 0x47800000) if family == "float16" else (16, 0, 0x7F800000)
    )
    step = 1 << shift
    halfway = np.arange(first, last, step, dtype=np.uint32)[:, None] + np.uint32(step // 2)
    bits = (halfway + np.array([-1, 0, 1], np.int64).astype(np.uint32)).reshape(-1)
    x = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    check_encode(KernelParams(family), [x], None, one_row(x.size))
    payload = x.view(np.uint8)
    check_decode(KernelParams("float32"), payload, 1, one_row(x.size), [x.size], dtypes=[family])
    subnormal_halves = (np.arange(4 * 1024, dtype=np.float32) / 4 * 2.0**-24).astype(np.float32)
    check_encode(KernelParams(family), [subnormal_halves], None, one_row(4 * 1024))


@pytest.mark.parametrize("params", CASTS, ids=lambda p: p.family)
def test_buckets_too_large_for_the_caches(params: KernelParams) -> None:
    # Kernels write payloads and sums another way where memory is aligned for it, here at 0 and 16.
    x = numbers("normal", (16 << 20) // 4 + 300)
    table, misalignments = one_row(x.size), [0, 4, 16]
    check_encode(params, [x], None, table, misalignments=misalignments)
    residual = numbers("normal", x.size, 2)
    payload = check_encode(params, [x], [residual], table, misalignments=misalignments)
    both = np.concatenate([payload, payload])
    check_decode(params, both, 2, table, [x.size], 0.5, misalignments=misalignments)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_buckets(data: st.DataObject) -> None:
    check_any_bucket(data.draw(st.sampled_from(CASTS)), data)
