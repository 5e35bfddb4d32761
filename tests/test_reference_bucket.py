"""The oracle on buckets: segment tables, residuals, sums over ranks, the two-phase middle step."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradcomp import reference
from gradcomp.reference import KernelParams

RNG = (11, 22, 3, 0)
CASTS = [KernelParams(f) for f in ("float32", "float16", "bfloat16")]
QUANTIZE = [KernelParams("quantize", b, 32, s) for b in (8, 4, 2) for s in (False, True)]
TOPK = [
    KernelParams("topk", values="float16"),
    KernelParams("topk", values="float32"),
    KernelParams("topk", 4, 32, True, "quantize"),
    KernelParams("topk", 0, 32, False, "float8_e5m2"),
    KernelParams("topk", 0, 32, False, "sign"),
]
SCALED = [KernelParams(f, 0, 32) for f in ("float8_e4m3", "float8_e5m2", "sign")]
ALL = [*CASTS, *QUANTIZE, *SCALED, *TOPK]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def whole(params: KernelParams, *numels: int) -> np.ndarray:
    """A table of one row a tensor; stream 100 and up."""
    kept = [-(-n // 5) if params.family == "topk" else 0 for n in numels]
    rows = [(i, 0, n, k, 100 + i) for i, (n, k) in enumerate(zip(numels, kept, strict=True))]
    return np.array(rows, np.int64).reshape(-1, 5)


def bits(x: Any) -> list[int]:
    return np.asarray(x, np.float32).view(np.uint32).ravel().tolist()


@pytest.mark.parametrize("params", ALL, ids=str)
def test_a_bucket_is_its_tensors_one_after_the_other(params: KernelParams) -> None:
    xs = [normal(7, 11), np.zeros((0, 3), np.float32), normal(), normal(33).astype(np.float16)]
    xs.append(normal(5).astype(ml_dtypes.bfloat16))
    table = whole(params, *(x.size for x in xs))
    payload, residuals = reference.encode(params, xs, None, table, RNG)
    assert residuals is None
    assert payload.size == reference.payload_size(params, table)
    alone = []
    for x, row in zip(xs, table, strict=True):
        one = row.copy()
        one[0] = 0
        alone.append(reference.encode(params, [x.astype(np.float32)], None, [one], RNG)[0])
    np.testing.assert_array_equal(payload, np.concatenate(alone))
    shapes = [x.shape for x in xs]
    outputs, finite = reference.decode(params, payload, 1, table, 1.0, shapes, ["float32"] * 5)
    assert finite and [o.shape for o in outputs] == shapes


@pytest.mark.parametrize("params", [*CASTS, *QUANTIZE, *SCALED], ids=str)
def test_a_tensor_cut_at_blocks_has_the_codes_of_the_whole(params: KernelParams) -> None:
    x = normal(300)
    table = np.array([[0, 0, 64, 0, 7], [0, 64, 160, 0, 7], [0, 224, 76, 0, 7]], np.int64)
    one = np.array([[0, 0, 300, 0, 7]], np.int64)
    cut, _ = reference.encode(params, [x], None, table, RNG)
    uncut, _ = reference.encode(params, [x], None, one, RNG)
    decode = reference.decode
    (a,), _ = decode(params, cut, 1, table, 1.0, [(300,)], ["float32"])
    (b,), _ = decode(params, uncut, 1, one, 1.0, [(300,)], ["float32"])
    assert bits(a) == bits(b)


@pytest.mark.parametrize("params", ALL, ids=str)
def test_the_residual_is_what_the_payload_drops(params: KernelParams) -> None:
    xs, old = [normal(40, 3), normal(70)], [normal(40, 3, seed=1), normal(70, seed=2)]
    xs[1][3], xs[1][50], old[1][10] = np.nan, np.inf, -np.inf
    table = whole(params, 120, 70)
    before = [bits(x) for x in (*xs, *old)]
    payload, new = reference.encode(params, xs, old, table, RNG)
    assert [bits(x) for x in (*xs, *old)] == before
    plain, _ = reference.encode(
        params, [x + r for x, r in zip(xs, old, strict=True)], None, table, RNG
    )
    np.testing.assert_array_equal(payload, plain)
    shapes = [x.shape for x in xs]
    sent, finite = reference.decode(params, payload, 1, table, 1.0, shapes, ["float32"] * 2)
    assert not finite and new is not None
    for x, r, d, left in zip(xs, old, sent, new, strict=True):
        with np.errstate(invalid="ignore"):
            expected = (x + r) - d
        assert left.shape == x.shape
        assert bits(left) == bits(np.where(np.isnan(expected), np.float32(np.nan), expected))


def test_sums_are_in_rank_order_then_scaled() -> None:
    params, table = KernelParams("float32"), whole(KernelParams("float32"), 1)
    # In any other order the small value would survive, or the large ones would not cancel.
    payloads = np.array([1.0, 1e9, -1e9], "<f4").view(np.uint8)
    (total,), _ = reference.decode(params, payloads, 3, table, 0.5, [(1,)], ["float32"])
    assert total.tolist() == [0.0]
    moved = np.array([1e9, -1e9, 1.0], "<f4").view(np.uint8)
    (total,), _ = reference.decode(params, moved, 3, table, 0.5, [(1,)], ["float32"])
    assert total.tolist() == [0.5]


def test_negative_zero_survives_casts_and_not_top_k() -> None:
    x = np.array([-0.0], np.float32)
    for params, expected in ((KernelParams("float16"), 0x80000000), (TOPK[0], 0)):
        table = whole(params, 1)
        payload, new = reference.encode(params, [x], [np.array([-0.0], np.float32)], table, RNG)
        (out,), _ = reference.decode(params, payload, 1, table, 1.0, [(1,)], ["float32"])
        assert bits(out) == [expected]
        assert new is not None and bits(new[0]) == [0x80000000 - expected]


@pytest.mark.parametrize(
    ("value", "dtype", "result", "finite"),
    [
        (65504.0, "float16", 65504.0, True),
        (70000.0, "float16", np.inf, False),
        (70000.0, "bfloat16", 70144.0, True),
        (3.4e38, "bfloat16", np.inf, False),
        (np.nan, "float32", np.nan, False),
        (-np.inf, "float32", -np.inf, False),
    ],
)
def test_finite_is_judged_after_the_output_cast(
    value: float, dtype: str, result: float, finite: bool
) -> None:
    params, table = KernelParams("float32"), whole(KernelParams("float32"), 3)
    payload = np.array([1.0, value, 2.0], "<f4").view(np.uint8)
    (out,), verdict = reference.decode(params, payload, 1, table, 1.0, [(3,)], [dtype])
    assert out.dtype == dtype and verdict is finite
    np.testing.assert_array_equal(out.astype(np.float32), np.float32([1.0, result, 2.0]))


@pytest.mark.parametrize("params", [*CASTS, *QUANTIZE, *SCALED], ids=str)
@pytest.mark.parametrize("feedback", [False, True])
def test_reduce_is_a_sum_and_an_encode(params: KernelParams, feedback: bool) -> None:
    table = np.array([[2, 64, 36, 0, 7], [3, 0, 0, 0, 8], [4, 0, 50, 0, 9]], np.int64)
    alone = np.array([[0, 0, 36, 0, 7], [1, 0, 0, 0, 8], [2, 0, 50, 0, 9]], np.int64)
    chunks = [[normal(36, seed=r), normal(0), normal(50, seed=9 + r)] for r in range(3)]
    wire = np.concatenate([reference.encode(params, c, None, alone, RNG)[0] for c in chunks])
    residual = normal(86, seed=5) if feedback else None
    rng = (11, 22, 1, 1)
    payload, new = reference.reduce(params, wire, 3, residual, table, rng, 1 / 3)

    shapes = [(36,), (0,), (50,)]
    sums, _ = reference.decode(params, wire, 3, alone, 1 / 3, shapes, ["float32"] * 3)
    # The random bits belong to elements 64 and up of the first tensor.
    padded = [np.concatenate([np.zeros(64, np.float32), sums[0]]), *sums[1:]]
    rows = np.array([[0, 0, 64, 0, 7], [0, 64, 36, 0, 7], *(alone[1:].tolist())], np.int64)
    old = None
    if residual is not None:
        old = [np.zeros(100, np.float32), np.zeros(0, np.float32), residual[36:]]
        old[0][64:] = residual[:36]
    expected, left = reference.encode(params, padded, old, rows, rng)
    skipped = reference.segment_size(params, 64)
    np.testing.assert_array_equal(payload, expected[skipped:])
    if new is not None and left is not None:
        assert bits(new) == bits(np.concatenate([left[0][64:], left[2]]))
    assert (new is None) is not feedback


TABLE = [[0, 0, 4, 0, 0]]


@pytest.mark.parametrize(
    ("params", "table", "reason"),
    [
        (KernelParams("fp16"), TABLE, "no kernel family 'fp16'"),
        (KernelParams("float16", bits=4), TABLE, "takes no options"),
        (KernelParams("quantize", 3, 32), TABLE, "8, 4 or 2, got 3"),
        (KernelParams("quantize", 4, 33), TABLE, "multiple of 32, got 33"),
        (KernelParams("quantize", 4, 32, values="float32"), TABLE, "takes no values"),
        (KernelParams("topk", values="topk"), TABLE, "values as 'topk'"),
        (KernelParams("topk", 4, 32, values="float16"), TABLE, "takes no options"),
        (CASTS[0], [[0, 0, 4, 0]], r"\[1, 4\]"),
        (CASTS[0], [[0.0] * 5], "float64"),
        (CASTS[0], [[0, 0, 3, 0, 0]], r"cover \[3\] elements"),
        (CASTS[0], [[0, 0, 5, 0, 0]], r"cover \[5\] elements"),
        (CASTS[0], [[0, 0, 2, 0, 0], [0, 3, 1, 0, 0]], "does not follow"),
        (CASTS[0], [[1, 0, 4, 0, 0]], "does not follow"),
        (CASTS[0], [[0, 0, -4, 0, 0]], "out of range"),
        (TOPK[0], [[0, 0, 4, 5, 0]], "out of range"),
        (TOPK[0], [[0, 0, 4, -1, 0]], "out of range"),
        (QUANTIZE[0], [[0, 16, 4, 0, 0]], "within a block of 32"),
    ],
)
def test_what_does_not_fit_is_refused(params: KernelParams, table: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        reference.encode(params, [normal(4)], None, table, RNG)


def test_other_arguments_that_do_not_fit() -> None:
    params, table = CASTS[1], np.array(TABLE, np.int64)
    with pytest.raises(ValueError, match="got float64"):
        reference.encode(params, [np.zeros(4)], None, table, RNG)
    for residual in (np.zeros(4), np.zeros(3, np.float32)):
        with pytest.raises(ValueError, match="expected a residual of 4 float32"):
            reference.encode(params, [normal(4)], [residual], table, RNG)
    for payload, world in ((np.zeros(7, np.uint8), 1), (np.zeros(8, np.int8), 1)):
        with pytest.raises(ValueError, match="expected 1 payloads of 8 bytes"):
            reference.decode(params, payload, world, table, 1.0, [(4,)], ["float32"])
    with pytest.raises(ValueError, match="expected 0 payloads"):
        reference.decode(params, np.zeros(0, np.uint8), 0, table, 1.0, [(4,)], ["float32"])
    with pytest.raises(ValueError, match="two phases"):
        reference.reduce(TOPK[0], np.zeros(0, np.uint8), 1, None, table, RNG, 1.0)
