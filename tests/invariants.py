"""DESIGN's invariants, each a function that one rank runs; they assert on every rank.

`test_invariants.py` runs them on `LocalCollective`s of several sizes, `test_invariants_horovod.py`
on real Horovod processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from invariants_sparse import sparse_checks

import gradcomp as gc
from gradcomp.bucket import VariableSpec
from gradcomp.collective import Collective
from gradcomp.hierarchy import Levels
from gradcomp.plan import Plan
from gradcomp.reducer import Reducer

SHAPES = ((7, 130), (1,), (64, 33), (0, 4), (5,), (257,))


@dataclass(frozen=True)
class GatheredQuantize(gc.Quantize):
    """Quantize where all-gather is the only route."""

    name: ClassVar[str] = "gathered-quantize"
    routes: ClassVar[tuple[str, ...]] = ("all_gather",)


@dataclass(frozen=True)
class TwoPhaseQuantize(gc.Quantize):
    """Quantize where two-phase is the only route, also between two ranks."""

    name: ClassVar[str] = "two-phase-quantize"
    routes: ClassVar[tuple[str, ...]] = ("two_phase",)


@dataclass(frozen=True)
class TwoPhaseFP16(gc.FP16):
    """FP16 where two-phase is the only route."""

    name: ClassVar[str] = "two-phase-fp16"
    routes: ClassVar[tuple[str, ...]] = ("two_phase",)


CODECS = (
    gc.FP16(),
    gc.BF16(),
    gc.Quantize(bits=8),
    gc.Quantize(bits=4, block_size=32),
    gc.Quantize(bits=2, block_size=64),
    GatheredQuantize(bits=4),
    TwoPhaseQuantize(bits=8, block_size=32),
    TwoPhaseQuantize(bits=4, block_size=96, stochastic=True),
    TwoPhaseFP16(),
    gc.FP8(),
    gc.Sign(block_size=96),
    gc.TopK(density=0.05),
    gc.TopK(density=0.05, values=gc.FP8()),
    gc.TopK(density=0.01, values=gc.Identity()),
    gc.TopK(density=0.1, values=gc.Quantize(bits=4, block_size=32)),
)

_names = iter(range(10**9))


def new_name() -> str:
    """Ranks call it in the same order; LocalCollective's threads agree by the caller passing it."""
    return f"test{next(_names)}"


def make_reducer(
    rank: Collective, codec: Any, bucket_bytes: int = 12_000, **options: Any
) -> Reducer:
    """A reducer of SHAPES on `rank`, hierarchical where the rank has `levels`; see hosts.py."""
    plan = on_hosts(make_plan(codec, rank.size, bucket_bytes), rank)
    return Reducer(plan, rank, levels=levels_of(rank), **options)


def levels_of(rank: Collective) -> Levels | None:
    return getattr(rank, "levels", None)


def on_hosts(plan: Plan, rank: Any) -> Plan:
    """The plan of a rank that may have `levels`."""
    levels = levels_of(rank)
    if levels is None:
        return plan
    return replace(plan, hosts=rank.host_sizes, leads=levels.cross is not None)


def make_plan(codec: Any, world_size: int, bucket_bytes: int = 12_000) -> Plan:
    variables = tuple(
        VariableSpec(i, f"layer_{i}/kernel", shape, "float32", codec)
        for i, shape in enumerate(SHAPES)
    )
    return Plan(variables, world_size, bucket_bytes)


def gradients_of(rank: int, step: int, scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng([rank, step])
    return [
        (scale * rng.standard_normal(s) * rng.standard_normal(s)).astype(np.float32) for s in SHAPES
    ]


def tensors_of(rank: int, step: int) -> list[tf.Tensor]:
    return [tf.constant(g) for g in gradients_of(rank, step)]


def contribution(reducer: Reducer, shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[np.ndarray]:
    """What one rank's residuals will add to each variable's reduced gradient."""
    total = chunk_residual_per_variable(reducer, shapes)
    share = 1 / reducer.plan.world_size if reducer.average else 1.0
    for index, variable in {**reducer.residuals, **reducer.carried}.items():
        total[index] = total[index] + share * variable.numpy().astype(np.float64)
    return total


def chunk_residual_per_variable(
    reducer: Reducer, shapes: Sequence[tuple[int, ...]] = SHAPES
) -> list[np.ndarray]:
    """The second-phase residual of the rank's chunks, put back where it belongs."""
    full = [np.zeros(shape, np.float64).reshape(-1) for shape in shapes]
    for bucket in reducer.plan.layouts:
        if bucket.index not in reducer.chunk_residuals:
            continue
        values = reducer.chunk_residuals[bucket.index].numpy()
        offset = 0
        for tensor, start, length, _, _ in bucket.chunks[reducer.keeper].segments:
            index = bucket.variables[tensor].index
            full[index][start : start + length] = values[offset : offset + length]
            offset += length
        assert offset == values.size
    return [f.reshape(shape) for f, shape in zip(full, shapes, strict=True)]


def conservation(rank: Collective, codec: Any, average: bool, name: str) -> None:
    """Over the steps, Σ applied + Σ residuals = Σ gradients, on the route the codec takes."""
    steps = 6
    reducer = make_reducer(rank, codec, average=average, name=name)
    applied = [np.zeros(s, np.float64) for s in SHAPES]
    given = [np.zeros(s, np.float64) for s in SHAPES]
    for step in range(steps):
        mine = tensors_of(rank.rank, step)
        for total, gradient in zip(given, mine, strict=True):
            total += gradient.numpy()
        for total, reduced in zip(applied, reducer.reduce(mine).gradients, strict=True):
            total += reduced.numpy()
    residuals = (
        [reducer.residuals[i].numpy().astype(np.float64) for i in range(len(SHAPES))]
        if reducer.residuals
        else [np.zeros(s) for s in SHAPES]
    )
    second = chunk_residual_per_variable(reducer)
    share = 1 / rank.size if average else 1.0
    everyones = rank.all_gather_object((given, residuals, second), name=f"{name}.check")
    for i, shape in enumerate(SHAPES):
        expected = share * sum(g[i] for g, _, _ in everyones)
        waiting = share * sum(r[i] for _, r, _ in everyones) + sum(s[i] for _, _, s in everyones)
        # One rounding of float32 an addition, of values that are at most this large.
        largest = max((np.abs(g[i]).max(initial=0) for g, _, _ in everyones), default=0) + 1
        bound = 2 * steps * rank.size * largest * np.finfo(np.float32).eps
        np.testing.assert_allclose(applied[i] + waiting, expected, rtol=0, atol=bound)
        assert applied[i].shape == shape
    if reducer.keeper is None:
        assert not reducer.residuals
        assert not reducer.chunk_residuals
    elif not codec.lossless and rank.size > 1:
        assert any(np.any(r) for r in residuals), "nothing was dropped: the test shows nothing"


def identical_ranks(rank: Collective, codec: Any, name: str) -> None:
    """Ranks end with the same bits, and the same seed gives the same run."""
    runs = []
    for attempt in range(2):
        reducer = make_reducer(rank, codec, seed=3, name=f"{name}.{attempt}")
        runs.append(
            [
                [
                    reduced.numpy().tobytes()
                    for reduced in reducer.reduce(tensors_of(rank.rank, s)).gradients
                ]
                for s in range(3)
            ]
        )
    assert runs[0] == runs[1]
    everyones = rank.all_gather_object(runs[0], name=f"{name}.check")
    assert all(run == everyones[0] for run in everyones)
    assert len(set(map(str, runs[0]))) == 3, "steps repeat each other"


def non_finite(rank: Collective, codec: Any, value: float, name: str) -> None:
    """One bad value on one rank reaches all, and changes no residual and no counter."""
    culprit = rank.size - 1
    reducer = make_reducer(rank, codec, name=name)
    reducer.reduce(tensors_of(rank.rank, 0))
    before = _state(reducer)
    gradients = gradients_of(rank.rank, 1)
    if rank.rank == culprit:
        gradients[2][60, 7] = value
    reduced = reducer.reduce([tf.constant(g) for g in gradients]).gradients
    assert not np.isfinite(reduced[2].numpy()).all()
    assert np.isfinite(reduced[0].numpy()).all()
    assert _state(reducer) == before
    after = reducer.reduce(tensors_of(rank.rank, 1)).gradients
    assert all(np.isfinite(r.numpy()).all() for r in after)
    if rank.size > 1:
        assert _state(reducer) != before


def identity_is_dense(rank: Collective, name: str) -> None:
    """Identity takes the engine's own collective and gives its bits."""
    reducer = Reducer(make_plan(gc.Identity(), rank.size, bucket_bytes=1), rank, name=name)
    assert not reducer.residuals
    mine = tensors_of(rank.rank, 0)
    reduced = reducer.reduce(mine).gradients
    for i, (gradient, ours) in enumerate(zip(mine, reduced, strict=True)):
        (engine,) = rank.all_reduce([gradient], average=True, name=f"{name}.engine{i}")
        assert engine.numpy().tobytes() == ours.numpy().tobytes()


def disagreement(rank: Collective, make: Callable[[int], Plan], name: str) -> str:
    """All ranks raise the same MismatchError; returns its message."""
    try:
        Reducer(make(rank.rank), rank, name=name)
    except gc.MismatchError as error:
        messages = rank.all_gather_object(str(error), name=f"{name}.check")
        assert len(set(messages)) == 1
        return str(error)
    raise AssertionError(f"rank {rank.rank} did not notice")


def missing_gradients(rank: Collective, codec: Any, name: str) -> None:
    """None on one rank is zeros; None on all leaves the variable's residuals as they are.

    Ranks may change their minds at any step, alone: nobody waits for anybody.
    """
    reducer = make_reducer(rank, codec, average=False, name=name)
    if rank.size == 1:
        reduced, present = reducer.reduce([None, *tensors_of(0, 0)[1:]])
        assert reduced[0] is None
        assert not present[0]
        return
    applied = [np.zeros(s, np.float64) for s in SHAPES]
    given = [np.zeros(s, np.float64) for s in SHAPES]
    for step in range(4):
        gradients: list[Any] = tensors_of(rank.rank, step)
        if step in (1, 2):
            gradients[2] = None  # on all ranks
        if step in (1, 3) and rank.rank == 0:
            gradients[0] = None
        before = _residuals_of(reducer, 2)
        reduced, present = reducer.reduce(gradients)
        assert present.numpy().tolist() == [i != 2 or step in (0, 3) for i in range(len(SHAPES))]
        if step in (1, 2):
            for old, new in zip(before, _residuals_of(reducer, 2), strict=True):
                np.testing.assert_array_equal(old, new)
        for i, gradient in enumerate(gradients):
            given[i] += 0 if gradient is None else gradient.numpy()
            applied[i] += reduced[i].numpy() if present[i] else 0
    for i in range(len(SHAPES)):
        waiting = sum(_residuals_of(reducer, i))
        everyones = rank.all_gather_object((given[i], waiting), name=f"{name}.check{i}")
        np.testing.assert_allclose(
            applied[i] + sum(w for _, w in everyones), sum(g for g, _ in everyones), atol=1e-3
        )


def sparse_gradients(rank: Collective, name: str) -> None:
    """IndexedSlices stay slices, rows in rank order; ranks may have none, or a dense one."""
    reducer = make_reducer(rank, None, average=False, name=name)
    gradients: list[Any] = tensors_of(rank.rank, 0)
    rows = tf.constant([rank.rank, 3], tf.int32)
    slices = tf.IndexedSlices(tf.ones((2, 130)), rows, tf.constant([7, 130]))
    dense = np.zeros((rank.size, 7, 130), np.float32)
    for r in range(rank.size):
        dense[r, r] += 1
        dense[r, 3] += 1
    for mine, expected in (
        (slices, dense.sum(0)),
        (None if rank.rank == 0 else slices, dense[1:].sum(0)),
        (tf.constant(dense[0]) if rank.rank == 0 else slices, dense.sum(0)),
    ):
        gradients[0] = mine
        reduced, present = reducer.reduce(gradients)
        if rank.size == 1:
            assert reduced[0] is mine
            continue
        assert present[0]
        assert isinstance(reduced[0], tf.IndexedSlices)
        np.testing.assert_array_equal(tf.convert_to_tensor(reduced[0]).numpy(), expected)
    mixed = make_reducer(rank, gc.FP16(), average=False, name=f"{name}.mixed")
    gradients[0] = tf.constant(dense[0]) if rank.rank == 0 else slices
    reduced, _ = mixed.reduce(gradients)
    assert not isinstance(reduced[0], tf.IndexedSlices), "dense on a rank: dense on all"
    np.testing.assert_array_equal(reduced[0].numpy(), dense.sum(0))


def all_checks(in_turn: bool = False) -> Iterator[tuple[str, Callable[[Collective, str], Any]]]:
    """(id, check) for everything above; a check takes the rank and a unique name.

    `in_turn`, a codec is checked with one of sum and average and one bad value, in turn.
    """
    for number, codec in enumerate((*CODECS, gc.Identity(), None)):
        spec = "none" if codec is None else codec.spec
        chosen = (number % 2,) if in_turn else (0, 1)
        averages = [(True, False)[i] for i in chosen]
        bad_values = [(np.inf, np.nan)[i] for i in chosen]
        if codec is not None:
            for average in averages:
                yield (
                    f"conservation[{spec},{'average' if average else 'sum'}]",
                    lambda rank, name, c=codec, a=average: conservation(rank, c, a, name),
                )
        yield f"identical_ranks[{spec}]", lambda r, n, c=codec: identical_ranks(r, c, n)
        for value in bad_values:
            yield (
                f"non_finite[{spec},{value}]",
                lambda rank, name, c=codec, v=value: non_finite(rank, c, v, name),
            )
        yield f"missing_gradients[{spec}]", lambda r, n, c=codec: missing_gradients(r, c, n)
    yield "identity_is_dense", identity_is_dense
    yield "sparse_gradients", sparse_gradients
    yield from sparse_checks()


def _residuals_of(reducer: Reducer, index: int) -> list[np.ndarray]:
    first = reducer.residuals[index].numpy() if reducer.residuals else np.zeros(SHAPES[index])
    return [first.astype(np.float64), chunk_residual_per_variable(reducer)[index]]


def _state(reducer: Reducer) -> list[bytes]:
    variables = [reducer.step, *reducer.residuals.values(), *reducer.chunk_residuals.values()]
    return [v.numpy().tobytes() for v in variables]
