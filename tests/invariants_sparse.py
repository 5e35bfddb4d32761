"""DESIGN's invariants for slices: gradients of tables of which each rank touches other rows.

Rows differ by rank and step, come several times, and at some steps a rank has none, no gradient or
a dense one. Among the variables are two tables, and dense ones in the tables' buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

import gradcomp as gc
from gradcomp.bucket import VariableSpec
from gradcomp.codecs.array import ArrayCodec
from gradcomp.collective import Collective
from gradcomp.plan import Plan
from gradcomp.reducer import Reducer

SHAPES = ((33, 20), (40, 6), (57,), (9, 31))
TABLES = (1, 2)
STEPS = 6

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def eagerly(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@dataclass(frozen=True)
class TwoPhaseRows(gc.Quantize):
    """Quantize where two-phase is the only route, also between two ranks."""

    name: ClassVar[str] = "two-phase-rows"
    routes: ClassVar[tuple[str, ...]] = ("two_phase",)


@dataclass(frozen=True)
class HalfArray(ArrayCodec):
    """FP16 in NumPy."""

    name: ClassVar[str] = "half-array"

    def payload_size(self, numel: int) -> int:
        return 2 * numel

    def encode_array(self, x: Any, random: Any) -> Any:
        return x.astype(np.float16).view(np.uint8)

    def decode_array(self, payload: Any, numel: int) -> Any:
        return payload.view(np.float16).astype(np.float32)


CODECS = (
    gc.FP16(),
    gc.Quantize(bits=4, block_size=32),
    TwoPhaseRows(bits=8, block_size=32, stochastic=True),
    gc.TopK(density=0.1),
    gc.TopK(density=0.3, values=gc.Identity()),
    HalfArray(),
)


def make_plan(codec: Any, world_size: int, dtype: str = "float32") -> Plan:
    variables = tuple(
        VariableSpec(i, f"layer_{i}/table", shape, dtype, codec) for i, shape in enumerate(SHAPES)
    )
    return Plan(variables, world_size, bucket_bytes=6000)


def rows_of(rank: int, step: int, count: int) -> np.ndarray:
    """Row numbers, some of them several times; at step 4 every rank has all."""
    random = np.random.default_rng([rank, step, count])
    if step == 4:
        return random.permutation(np.append(np.arange(count), [0, 0, count - 1]))
    return random.integers(0, count, 0 if (rank + step) % 5 == 2 else count // 3)


def arrays_of(rank: int, step: int, dtype: str = "float32") -> list[Any]:
    """Each variable's gradient, or (values, rows)."""
    random = np.random.default_rng([7, rank, step])
    made: list[Any] = []
    for i, shape in enumerate(SHAPES):
        if i not in TABLES:
            made.append(random.standard_normal(shape).astype(dtype))
            continue
        rows = rows_of(rank, step, shape[0])
        made.append((random.standard_normal((rows.size, *shape[1:])).astype(dtype), rows))
    return made


def dense_of(gradient: Any, index: int) -> np.ndarray:
    """float64 of the variable's shape."""
    if not isinstance(gradient, tuple):
        return gradient.astype(np.float64)
    total = np.zeros(SHAPES[index], np.float64)
    np.add.at(total, gradient[1], gradient[0].astype(np.float64))
    return total


def as_gradient(gradient: Any, index: int) -> Any:
    if not isinstance(gradient, tuple):
        return tf.constant(gradient)
    values, rows = gradient
    # Layers differ in the type of their indices.
    kind = tf.int32 if index % 2 else tf.int64
    return tf.IndexedSlices(
        tf.constant(values), tf.constant(rows, kind), tf.constant(SHAPES[index])
    )


def gradients_of(rank: int, step: int, dtype: str = "float32") -> list[Any]:
    return [as_gradient(g, i) for i, g in enumerate(arrays_of(rank, step, dtype))]


def touched_by(gradient: Any, index: int) -> np.ndarray:
    if gradient is None:
        return np.zeros(0, np.int64)
    return np.unique(gradient[1]) if isinstance(gradient, tuple) else np.arange(SHAPES[index][0])


def residuals_of(reducer: Reducer) -> list[np.ndarray]:
    """float64 of each variable's shape, both phases, in units of the first phase's contribution."""
    found = [np.zeros(shape, np.float64) for shape in SHAPES]
    for index, variable in reducer.residuals.items():
        found[index] += variable.numpy()
    factor = reducer.plan.world_size if reducer.average else 1
    for bucket in reducer.plan.buckets:
        if bucket.index not in reducer.chunk_residuals:
            continue
        values, at = reducer.chunk_residuals[bucket.index].numpy(), 0
        for tensor, start, length, _, _ in bucket.chunks[reducer.rank].segments:
            flat = found[bucket.variables[tensor].index].reshape(-1)
            flat[start : start + length] += factor * values[at : at + length].astype(np.float64)
            at += length
    return found


def sparse_conservation(
    rank: Collective, codec: Any, average: bool, name: str, wrap: Wrap = eagerly
) -> None:
    """Σ applied + Σ residuals = Σ gradients; untouched rows wait, touched ones come ascending."""
    reducer = Reducer(make_plan(codec, rank.size), rank, average=average, name=name)
    reduce = wrap(lambda gradients: reducer.reduce(gradients))
    applied = [np.zeros(s, np.float64) for s in SHAPES]
    given = [np.zeros(s, np.float64) for s in SHAPES]
    for step in range(STEPS):
        mine: list[Any] = arrays_of(rank.rank, step)
        if step == 2 and rank.rank == 0:
            mine[1] = None
        if step == 3 and rank.rank == rank.size - 1:
            mine[1] = dense_of(mine[1], 1).astype(np.float32)
        before = {i: reducer.residuals[i].numpy() for i in TABLES if i in reducer.residuals}
        gradients = [None if g is None else as_gradient(g, i) for i, g in enumerate(mine)]
        if rank.size == 1:
            assert reducer.reduce(gradients).gradients[1] is gradients[1]
            continue
        reduced = reduce(gradients).gradients
        everyones = rank.all_gather_object(
            ([touched_by(mine[i], i) for i in TABLES], [_bytes_of(g) for g in reduced]),
            name=f"{name}.touched{step}",
        )
        assert all(bits == everyones[0][1] for _, bits in everyones), "ranks must agree bit by bit"
        for i, gradient in enumerate(mine):
            given[i] += 0 if gradient is None else dense_of(gradient, i)
            applied[i] += _dense(reduced[i])
        for at, i in enumerate(TABLES):
            union = np.unique(np.concatenate([touched[at] for touched, _ in everyones]))
            assert isinstance(reduced[i], tf.IndexedSlices)
            np.testing.assert_array_equal(reduced[i].indices.numpy(), union)
            assert tuple(reduced[i].dense_shape.numpy()) == SHAPES[i]
            if i in before:
                waiting = np.setdiff1d(np.arange(SHAPES[i][0]), everyones[rank.rank][0][at])
                after = reducer.residuals[i].numpy()
                assert after[waiting].tobytes() == before[i][waiting].tobytes(), "rows must wait"
    if rank.size == 1:
        return
    kept = residuals_of(reducer)
    everyones = rank.all_gather_object((given, kept), name=f"{name}.check")
    share = 1 / rank.size if average else 1.0
    for i in range(len(SHAPES)):
        expected = share * sum(g[i] for g, _ in everyones)
        waiting = share * sum(r[i] for _, r in everyones)
        np.testing.assert_allclose(applied[i] + waiting, expected, rtol=0, atol=5e-5 * rank.size)
    if codec is not None and any(bucket.codec for bucket in reducer.plan.buckets):
        assert all(any(np.any(r[i]) for _, r in everyones) for i in TABLES)


def sparse_identical_ranks(rank: Collective, codec: Any, feedback: bool, name: str) -> None:
    """The same seed gives the same run, another seed another where rounding is at random."""
    runs = []
    for attempt, seed in enumerate((3, 3, 4)):
        reducer = Reducer(
            make_plan(codec, rank.size),
            rank,
            error_feedback=feedback,
            seed=seed,
            name=f"{name}.{attempt}",
        )
        assert bool(reducer.residuals) == (feedback and rank.size > 1)
        steps = [reducer.reduce(gradients_of(rank.rank, step)).gradients for step in range(3)]
        runs.append([_bytes_of(gradient) for gradients in steps for gradient in gradients])
    assert runs[0] == runs[1]
    assert (runs[0] == runs[2]) == (rank.size == 1 or not codec.unbiased(feedback))
    everyones = rank.all_gather_object(runs[0], name=f"{name}.check")
    assert rank.size == 1 or all(run == everyones[0] for run in everyones)


def sparse_non_finite(rank: Collective, codec: Any, value: float, name: str) -> None:
    """One bad value in one rank's rows reaches all, and changes no residual and no counter."""
    if rank.size == 1:
        return
    reducer = Reducer(make_plan(codec, rank.size), rank, name=name)
    reducer.reduce(gradients_of(rank.rank, 0))
    kept = [reducer.step, *reducer.residuals.values(), *reducer.chunk_residuals.values()]
    before = [v.numpy().tobytes() for v in kept]
    mine = arrays_of(rank.rank, 2)
    if rank.rank == rank.size - 1:
        mine[1][0][2, 3] = value
    reduced = reducer.reduce([as_gradient(g, i) for i, g in enumerate(mine)]).gradients
    assert not np.isfinite(reduced[1].values.numpy()).all()
    assert np.isfinite(reduced[0].numpy()).all()
    assert np.isfinite(reduced[2].values.numpy()).all()
    assert [v.numpy().tobytes() for v in kept] == before
    after = reducer.reduce(gradients_of(rank.rank, 2)).gradients
    assert np.isfinite(after[1].values.numpy()).all()
    assert [v.numpy().tobytes() for v in kept] != before


def sparse_is_the_dense_result(rank: Collective, codec: Any, dtype: str, name: str) -> None:
    """Where nothing is lost, slices are the rows of what dense gradients give."""
    if rank.size == 1:
        return
    sparse = Reducer(make_plan(codec, rank.size, dtype), rank, name=f"{name}.sparse")
    dense = Reducer(make_plan(codec, rank.size, dtype), rank, name=f"{name}.dense")
    assert not sparse.residuals
    for step in range(STEPS):
        mine = arrays_of(rank.rank, step, dtype)
        rows = sparse.reduce([as_gradient(g, i) for i, g in enumerate(mine)]).gradients
        table = dense.reduce([tf.cast(dense_of(g, i), dtype) for i, g in enumerate(mine)]).gradients
        for i in range(len(SHAPES)):
            assert rows[i].dtype.name == dtype
            atol = {"float64": 1e-14, "float32": 1e-5, "float16": 2e-2}[dtype]
            np.testing.assert_allclose(_dense(rows[i]), _dense(table[i]), rtol=0, atol=atol)
        assert not isinstance(table[1], tf.IndexedSlices)


def sparse_checks() -> Iterator[tuple[str, Callable[[Collective, str], Any]]]:
    """(id, check) for everything above; a check takes the rank and a unique name."""
    for i, codec in enumerate((*CODECS, None, CODECS[1])):
        spec, average = "none" if codec is None else codec.spec, i % 2 == 0
        yield (
            f"sparse_conservation[{spec},{'average' if average else 'sum'}]",
            lambda r, n, c=codec, a=average: sparse_conservation(r, c, a, n),
        )
    for codec, feedback in ((CODECS[1], False), (CODECS[2], True), (CODECS[3], True)):
        yield (
            f"sparse_identical_ranks[{codec.spec},{feedback}]",
            lambda r, n, c=codec, f=feedback: sparse_identical_ranks(r, c, f, n),
        )
    for codec, value in ((CODECS[0], np.inf), (CODECS[1], np.nan), (CODECS[3], -np.inf)):
        yield (
            f"sparse_non_finite[{codec.spec},{value}]",
            lambda r, n, c=codec, v=value: sparse_non_finite(r, c, v, n),
        )
    for codec, dtype in ((None, "float32"), (gc.Identity(), "float16"), (None, "float64")):
        yield (
            f"sparse_is_the_dense_result[{dtype}]",
            lambda r, n, c=codec, d=dtype: sparse_is_the_dense_result(r, c, d, n),
        )


def _dense(gradient: Any) -> np.ndarray:
    """float64; of slices the sum, as a table."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient.numpy().astype(np.float64)
    table = np.zeros(tuple(gradient.dense_shape.numpy()), np.float64)
    np.add.at(table, gradient.indices.numpy(), gradient.values.numpy().astype(np.float64))
    return table


def _bytes_of(gradient: Any) -> bytes:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient.numpy().tobytes()
    return gradient.indices.numpy().tobytes() + gradient.values.numpy().tobytes()
