"""Slices over ranks that are threads: bytes, edges, saved residuals, the kernels behind them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf
from invariants_sparse import (
    CODECS,
    SHAPES,
    TABLES,
    gradients_of,
    make_plan,
    residuals_of,
)

import gradcomp as gc
from gradcomp import residuals
from gradcomp.archive import Archive, write_archive
from gradcomp.bucket import VariableSpec
from gradcomp.collective import LocalCollective
from gradcomp.plan import Plan
from gradcomp.reducer import Reducer

ROWS, WIDTH = 96, 64


@dataclass(frozen=True)
class GatheredFP16(gc.FP16):
    """FP16 that is gathered, or not compressed."""

    name: ClassVar[str] = "gathered-fp16"
    routes: ClassVar[tuple[str, ...]] = ("dense", "all_gather")


def table_plan(size: int, codec: Any, rows: int = ROWS, beside: bool = False) -> Plan:
    variables = [VariableSpec(0, "table", (rows, WIDTH), "float32", codec)]
    if beside:
        variables.append(VariableSpec(1, "kernel", (ROWS, WIDTH), "float32", codec))
    return Plan(tuple(variables), size)


def slices_of(rows: Any, seed: int = 0, count: int = ROWS) -> tf.IndexedSlices:
    values = np.random.default_rng(seed).standard_normal((len(rows), WIDTH)).astype(np.float32)
    return tf.IndexedSlices(
        tf.constant(values), tf.constant(rows, tf.int64), tf.constant([count, WIDTH])
    )


def sent(size: int, codec: Any, rows_of: Any, beside: bool = False) -> tuple[list[int], list[int]]:
    """(bytes sent, raw bytes) of each rank in one step."""

    def work(rank) -> Any:
        reducer = Reducer(table_plan(size, codec, beside=beside), rank, name="test")
        gradients: list[Any] = [slices_of(rows_of(rank.rank), rank.rank)]
        if beside:
            gradients.append(tf.ones((ROWS, WIDTH)))
        reducer.reduce(gradients)
        traffic = reducer.traffic()
        return traffic.sent_bytes, traffic.raw_bytes

    made = LocalCollective(size).run(work)
    return [s for s, _ in made], [r for _, r in made]


def overhead(size: int, count: int, variables: int = 1) -> int:
    """Which gradients there are, and two bytes for each row's number and for their end."""
    return 2 * (size - 1) * 4 * variables // size + (size - 1) * 2 * (count + 1)


@pytest.mark.parametrize("spec", ["quantize:bits=4", "topk:density=0.1", "fp16"])
def test_rows_of_a_rank_are_one_payload(spec) -> None:
    """Ranks that touch different rows gather: exact bytes, without the duplicates."""
    size, codec = 4, gc.codec(spec)
    assert codec is not None

    def rows_of(rank: int) -> list[int]:
        return [*range(20 * rank, 20 * rank + 5 + rank), 20 * rank, 20 * rank]

    bytes_sent, raw = sent(size, codec, rows_of)
    for rank in range(size):
        count = 5 + rank
        payload = codec.payload_size(count * WIDTH)
        assert bytes_sent[rank] == overhead(size, count) + (size - 1) * payload
        # As Horovod gathers them: every value and an int64, duplicates too.
        assert raw[rank] == (size - 1) * (count + 2) * (4 * WIDTH + 8)


@pytest.mark.parametrize(
    ("size", "codec", "dense"),
    [
        (4, gc.Quantize(bits=4, block_size=64), "two_phase"),
        (3, gc.FP16(), "two_phase"),
        (4, None, "all_reduce"),
        (7, GatheredFP16(), "all_reduce"),
        (2, gc.Quantize(bits=4), "gathered"),
        (2, None, "gathered"),
        (4, gc.TopK(density=0.05), "gathered"),
        (4, GatheredFP16(), "gathered"),
    ],
)
def test_rows_that_all_touch_are_dense_on_the_wire_where_that_is_cheaper(
    size, codec, dense
) -> None:
    bytes_sent, _ = sent(size, codec, lambda rank: np.random.default_rng(rank).permutation(ROWS))
    raw = 4 * ROWS * WIDTH
    payload = raw if codec is None else codec.payload_size(ROWS * WIDTH)
    cost = {
        "gathered": (size - 1) * payload,
        "two_phase": 2 * (size - 1) * payload / size,
        "all_reduce": 2 * (size - 1) * raw / size,
    }
    assert dense == "gathered" or cost[dense] < cost["gathered"]
    everyones = sum(bytes_sent) - size * overhead(size, ROWS)
    assert everyones == pytest.approx(size * cost[dense], abs=size * size)


def test_between_the_two_the_cheaper_one_is_taken() -> None:
    """Four ranks share some rows: dense pays off where a row is touched by more than two."""
    size, codec = 4, gc.Quantize(bits=8, block_size=64)
    for shared, own in ((10, 9), (10, 11)):  # 4 · (10 + own) against 2 · (10 + 4 · own) rows

        def rows_of(rank: int, shared: int = shared, own: int = own) -> list[int]:
            return [*range(shared), *range(shared + own * rank, shared + own * (rank + 1))]

        union = shared + size * own
        gathered = size * (size - 1) * codec.payload_size((shared + own) * WIDTH)
        dense = 2 * (size - 1) * codec.payload_size(union * WIDTH)
        bytes_sent, _ = sent(size, codec, rows_of)
        everyones = sum(bytes_sent) - size * overhead(size, shared + own)
        assert everyones == min(gathered, dense)


def test_a_table_leaves_no_zeros_in_its_bucket() -> None:
    size = 4
    for codec in (gc.Quantize(bits=4), gc.TopK(density=0.1), None):
        plan = table_plan(size, codec, beside=True)
        assert len(plan.buckets) == 1
        together, _ = sent(size, codec, lambda rank: [rank], beside=True)
        alone, _ = sent(size, codec, lambda rank: [rank])
        raw = 4 * ROWS * WIDTH
        kernel = raw if codec is None else codec.payload_size(ROWS * WIDTH)
        cost = {
            "two_phase": 2 * (size - 1) * kernel / size,
            "all_gather": (size - 1) * kernel,
            "dense": 2 * (size - 1) * raw / size,
        }[plan.buckets[0].route]
        flags = 2 * (size - 1) * 4
        assert sum(together) - sum(alone) == pytest.approx(size * cost + flags, abs=size * size)


@pytest.mark.parametrize(("rows", "itemsize"), [((1 << 16) - 1, 2), (1 << 16, 4)])
def test_row_numbers_are_exact_and_narrow(rows, itemsize) -> None:
    touched = [rows - 1, 0, rows // 2, rows - 1]

    def work(rank) -> Any:
        reducer = Reducer(table_plan(2, gc.FP16(), rows), rank, error_feedback=False, name="test")
        (reduced,), _ = reducer.reduce([slices_of(touched, count=rows)])
        return reduced.indices.numpy().tolist(), reducer.traffic().sent_bytes

    for indices, bytes_sent in LocalCollective(2).run(work):
        assert indices == [0, rows // 2, rows - 1]
        assert bytes_sent == 4 + 4 * itemsize + 3 * 2 * WIDTH


def test_no_rank_has_rows() -> None:
    def work(rank) -> Any:
        reducer = Reducer(table_plan(3, gc.Quantize(bits=8)), rank, name="test")
        reducer.reduce([slices_of([1, 2])])
        before = reducer.residuals[0].numpy()
        for gradient, there in ((slices_of([]), True), (None, False)):
            (reduced,), present = reducer.reduce([gradient])
            assert reduced.values.shape == (0, WIDTH)
            assert bool(present[0]) is there
        assert reducer.residuals[0].numpy().tobytes() == before.tobytes()
        assert before.any()

    LocalCollective(3).run(work)


@pytest.mark.parametrize("codec", [gc.FP16(), None], ids=str)
@pytest.mark.parametrize("row", [ROWS, -1])
def test_a_row_number_beyond_the_table_is_refused(codec, row) -> None:
    def work(rank) -> None:
        reducer = Reducer(table_plan(2, codec), rank, name="test")
        reducer.reduce([slices_of([3, row])])

    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s)table.*{ROWS} rows.*{row}"):
        LocalCollective(2).run(work)


def test_only_touched_rows_of_the_residual_are_written(monkeypatch) -> None:
    """A table of which a batch touches little is neither copied nor written as a whole."""
    written = []

    def work(rank) -> None:
        reducer = Reducer(table_plan(2, gc.Quantize(bits=4)), rank, name="test")
        residual = reducer.residuals[0]
        scatter = residual.scatter_update
        monkeypatch.setattr(
            residual, "scatter_update", lambda s: (written.append(s.indices.numpy()), scatter(s))
        )
        monkeypatch.setattr(residual, "assign", None)
        monkeypatch.setattr(residual, "read_value", None)
        reducer.reduce([slices_of([5, 3, 5])])

    LocalCollective(2).run(work)
    assert [rows.tolist() for rows in written] == [[3, 5]] * 2


def trained(size: int, codec: Any, average: bool, snapshots: Any = None) -> tuple[Any, list[Any]]:
    """Reducers after four steps, and Σ applied − Σ gradients."""

    def work(rank) -> Any:
        reducer = Reducer(make_plan(codec, size), rank, average=average, seed=5, name="test")
        if snapshots is not None:
            residuals.restore(reducer, snapshots)
        before = residuals_of(reducer)
        off = [np.zeros(shape) for shape in SHAPES]
        for step in range(4):
            mine = gradients_of(rank.rank + 10 * size, step)
            given = rank.all_gather_object(
                [tf.convert_to_tensor(g).numpy() for g in mine], name="g"
            )
            reduced = reducer.reduce(mine).gradients
            for i in range(len(SHAPES)):
                total = sum(g[i].astype(np.float64) for g in given) / (size if average else 1)
                off[i] = off[i] + tf.convert_to_tensor(reduced[i]).numpy() - total
        return reducer, off, before

    made = LocalCollective(size).run(work)
    return [m[0] for m in made], [made[0][1], [m[2] for m in made]]


def contribution(kept: list[list[np.ndarray]], average: bool) -> list[np.ndarray]:
    return [sum(r[i] for r in kept) / (len(kept) if average else 1) for i in range(len(SHAPES))]


@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize("codec", [CODECS[1], CODECS[3]], ids=lambda c: c.name)
@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2)])
def test_a_table_s_residual_is_saved_and_shared_out_anew(old, new, codec, average) -> None:
    reducers, _ = trained(old, codec, average)
    waiting = contribution([residuals_of(r) for r in reducers], average)
    assert all(waiting[i].any() for i in TABLES)
    snapshots = {}
    for rank, reducer in enumerate(reducers):
        stream = io.BytesIO()
        write_archive(stream, residuals.describe(reducer), residuals.arrays_of(reducer, "r/"))
        archive = Archive(stream, f"rank {rank}")
        snapshots[rank] = residuals.Snapshot(archive.metadata, archive, "r/")
    after, (off, before) = trained(new, codec, average, snapshots)
    left = contribution([residuals_of(r) for r in after], average)
    for i in range(len(SHAPES)):
        np.testing.assert_allclose(contribution(before, average)[i], waiting[i], atol=1e-5)
        np.testing.assert_allclose(off[i] + left[i] - waiting[i], 0, atol=2e-4)


@pytest.mark.parametrize("codec", [*CODECS, gc.Identity()], ids=lambda c: c.spec)
@pytest.mark.parametrize("size", [0, 2, 130])
def test_lengths_known_only_when_a_graph_runs_give_the_same_bytes(codec, size) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    old = np.random.default_rng(9).standard_normal(size).astype(np.float32)

    @tf.function(input_signature=[tf.TensorSpec([None])] * 2)
    def there_and_back(x, old):
        lengths = tf.reshape(tf.size(x, tf.int64), [1])
        nothing = tf.zeros_like(lengths)
        kept = nothing + tf.cast(codec.kept(lengths), tf.int64)
        segments = tf.stack([nothing, nothing, lengths, kept, nothing], axis=1)
        payload, (new,) = codec.encode_bucket([x], [old], segments, (3, 4, 0, 0))
        pairs = [(lengths[0] // 2, 2)]
        values, finite = codec.decode_bucket(payload, 1, segments, 1.0, pairs, ["float32"])
        assert values[0].shape.as_list() == [None, 2]
        summed, left = payload, new
        if "two_phase" in codec.routes:
            summed, left = codec.reduce_bucket(payload, 1, old, segments, (3, 4, 0, 1), 0.5)
        return payload, new, values[0], finite, codec.payload_sizes(lengths), summed, left

    payload, new, values, finite, sizes, summed, left = there_and_back(x, old)
    static = np.array([[0, 0, x.size, codec.kept(x.size), 0]], np.int64)
    residual = old.copy()
    want, _ = codec.encode_bucket([x], [residual], static, (3, 4, 0, 0))
    assert payload.numpy().tobytes() == want.tobytes()
    assert new.numpy().tobytes() == residual.tobytes()
    assert sizes.numpy().tolist() == [want.size]
    decoded = codec.decode(want, x.size)
    assert values.numpy().reshape(-1).tobytes() == decoded.tobytes()
    assert finite
    if "two_phase" in codec.routes:
        residual = old.copy()
        want, _ = codec.reduce_bucket(want, 1, residual, static, (3, 4, 0, 1), 0.5)
        assert summed.numpy().tobytes() == want.tobytes()
        assert left.numpy().tobytes() == residual.tobytes()


def test_parts_of_a_table_draw_from_streams_of_their_own() -> None:
    size, tables = 3, []

    @dataclass(frozen=True)
    class Spy(gc.Quantize):
        name: ClassVar[str] = "spy"

        def encode_bucket(self, gradients: Any, residuals: Any, segments: Any, rng: Any) -> Any:
            tables.append(np.asarray(segments))
            return super().encode_bucket(gradients, residuals, segments, rng)

    def work(rank) -> None:
        reducer = Reducer(table_plan(size, Spy(bits=8), beside=True), rank, name="test")
        reducer.reduce([slices_of(range(ROWS)), tf.ones((ROWS, WIDTH))])

    LocalCollective(size).run(work)
    for streams in [set(table[:, 4]) for table in tables if len(table) == size]:
        assert streams in ({1}, {0, 2, 4}), "of the matrix, which is cut, and of the table"
    assert len(tables) == 2 * size
