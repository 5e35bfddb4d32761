"""What residuals will add to gradients stays the same across files and numbers of ranks."""

import io
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hosts import run_on_hosts
from invariants import (
    SHAPES,
    GatheredQuantize,
    TwoPhaseQuantize,
    make_plan,
    make_reducer,
    tensors_of,
)
from invariants import contribution as contribution_of

import gradcomp as gc
from gradcomp import residuals
from gradcomp.archive import Archive, write_archive
from gradcomp.collective import LocalCollective
from gradcomp.reducer import Reducer

pytestmark = pytest.mark.filterwarnings("ignore:there is one process only")

STEPS = 4
CODECS = {
    "top-k": gc.TopK(density=0.05),
    "gathered": GatheredQuantize(bits=4),
    "two-phase": TwoPhaseQuantize(bits=4, block_size=32),
    "cheapest": gc.Quantize(bits=4),  # gathered among two ranks, two-phase among more
}


def contribution(reducers: list[Reducer]) -> list[np.ndarray]:
    """What all ranks' residuals together will add to each variable's reduced gradient."""
    return [sum(one) for one in zip(*map(contribution_of, reducers), strict=True)]


def train(
    ranks: int | tuple[int, ...],
    codec: Any,
    average: bool,
    snapshots: dict[int, residuals.Snapshot] | None = None,
    own: bool = False,
) -> tuple[list[Reducer], list[np.ndarray]]:
    """Reducers after some steps, and the sum of what was applied minus what was given.

    `ranks` is their number, or that on each host for a hierarchical exchange. With `own` each rank
    sees no file but its own.
    """
    size = ranks if isinstance(ranks, int) else sum(ranks)

    def work(rank) -> tuple[Reducer, list[np.ndarray]]:
        bucket_bytes = 12_000 + 1000 * size  # other buckets for another number of ranks
        reducer = make_reducer(rank, codec, bucket_bytes, average=average, seed=5, name="test")
        if snapshots is not None:
            found = {rank.rank: snapshots[rank.rank]} if own else snapshots
            residuals.restore(reducer, found, each_its_own=own)
            start[rank.rank] = reducer
            begin = rank.all_gather_object(None, name="begun")
            if rank.rank == 0:
                before.extend(contribution([start[r] for r in range(size)]))
            rank.all_gather_object(begin, name="looked")
        off = [np.zeros(shape, np.float64) for shape in SHAPES]
        share = 1 / size if average else 1.0
        for step in range(STEPS):
            mine = tensors_of(rank.rank + 10 * size, step)
            given = rank.all_gather_object([g.numpy().astype(np.float64) for g in mine], name="g")
            reduced = reducer.reduce(mine).gradients
            for i in range(len(SHAPES)):
                off[i] = off[i] + reduced[i].numpy() - share * sum(g[i] for g in given)
        return reducer, off

    start: dict[int, Reducer] = {}
    before: list[np.ndarray] = []
    hierarchical = not isinstance(ranks, int)
    made = run_on_hosts(ranks, work) if hierarchical else LocalCollective(size).run(work)
    off = made[0][1]
    if snapshots is not None:
        off = [o - b for o, b in zip(off, before, strict=True)]
        starts[:] = [before]
    return [reducer for reducer, _ in made], off


starts: list[list[np.ndarray]] = []


def saved(reducers: list[Reducer]) -> dict[int, residuals.Snapshot]:
    made = {}
    for rank, reducer in enumerate(reducers):
        stream = io.BytesIO()
        write_archive(stream, residuals.describe(reducer), residuals.arrays_of(reducer, "r/"))
        archive = Archive(stream, f"rank {rank}")
        made[rank] = residuals.Snapshot(archive.metadata, archive, "r/")
    return made


def close(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=0, atol=2e-4)


@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize(("old", "new"), [(2, 4), (4, 2), (3, 2), (2, 3), (3, 3), (2, 1), (4, 1)])
def test_another_number_of_ranks_keeps_the_contribution(old, new, codec, average) -> None:
    before, _ = train(old, codec, average)
    waiting = contribution(before)
    assert all(w.any() for w in waiting if w.size > 5)
    after, off = train(new, codec, average, saved(before))
    close(starts[0], waiting)
    # And it does arrive: applied − given − what waited at first = −what waits at last.
    close([o + w for o, w in zip(off, contribution(after), strict=True)], [0 * w for w in waiting])
    if new == 1:
        assert not any(w.any() for w in contribution(after)), "sent at the first step"


@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize("codec", [None, gc.Identity(), CODECS["top-k"]])
def test_another_codec_keeps_the_contribution(codec, average) -> None:
    """Where nothing is compressed any more, residuals are sent whole, once."""
    before, _ = train(3, CODECS["two-phase"], average)
    waiting = contribution(before)
    after, off = train(3, codec, average, saved(before))
    close(starts[0], waiting)
    close([o + w for o, w in zip(off, contribution(after), strict=True)], [0 * w for w in waiting])
    assert any(w.any() for w in contribution(after)) == (codec is CODECS["top-k"])


@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize("codec", [CODECS["top-k"], CODECS["two-phase"]], ids=["top-k", "quantize"])
@pytest.mark.parametrize(
    ("old", "new"), [((2, 2), 2), (3, (2, 2)), ((2, 1), (1, 3)), ((3, 1), 1), ((2, 2), 6)], ids=str
)
def test_hosts_that_come_and_go_keep_the_contribution(old, new, codec, average) -> None:
    """Leaders keep residuals for their hosts, and under Average all ranks count."""
    before, _ = train(old, codec, average)
    waiting = contribution(before)
    assert all(w.any() for w in waiting if w.size > 5)
    after, off = train(new, codec, average, saved(before))
    close(starts[0], waiting)
    close([o + w for o, w in zip(off, contribution(after), strict=True)], [0 * w for w in waiting])
    if new == (1, 3):
        assert [bool(r.residuals) for r in after] == [True, True, False, False]


@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize(
    ("old", "new", "codec"),
    [
        (4, (2, 2), CODECS["two-phase"]),
        ((2, 2), 4, CODECS["two-phase"]),
        ((3, 1), (2, 2), CODECS["two-phase"]),
        (3, 3, CODECS["top-k"]),
        (3, 3, None),
    ],
    ids=str,
)
def test_each_ranks_own_file_is_enough_for_as_many_ranks(old, new, codec, average) -> None:
    """Whoever keeps no residual any more, or no such chunk, sends what it had whole, once."""
    before, _ = train(old, CODECS["two-phase"], average)
    waiting = contribution(before)
    after, off = train(new, codec, average, saved(before), own=True)
    close(starts[0], waiting)
    close([o + w for o, w in zip(off, contribution(after), strict=True)], [0 * w for w in waiting])
    assert not any(np.any(v.numpy()) for r in after for v in r.carried.values())


def test_from_one_rank_to_two_before_it_was_sent() -> None:
    before, _ = train(2, CODECS["two-phase"], average=True)

    def alone(rank) -> Reducer:
        reducer = Reducer(make_plan(CODECS["two-phase"], 1), rank, name="test")
        residuals.restore(reducer, saved(before))
        return reducer

    (one,) = LocalCollective(1).run(alone)
    assert one.carried
    train(2, CODECS["two-phase"], True, saved([one]))
    close(starts[0], contribution(before))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_the_same_ranks_get_back_every_bit(codec) -> None:
    before, _ = train(3, codec, average=True)
    before[1].residuals[0].assign(-before[1].residuals[0] * 0)  # has negative zeros
    snapshots = saved(before)

    def work(rank) -> None:
        plan = make_plan(codec, 3, 12_000 + 3000)
        reducer = Reducer(plan, rank, seed=5, name="test")
        residuals.restore(reducer, snapshots)
        old = before[rank.rank]
        for ours, theirs in (
            ({-1: reducer.step}, {-1: old.step}),
            (reducer.residuals, old.residuals),
            (reducer.chunk_residuals, old.chunk_residuals),
        ):
            assert ours.keys() == theirs.keys()
            for key in ours:
                assert ours[key].numpy().tobytes() == theirs[key].numpy().tobytes()
        assert not reducer.carried

    LocalCollective(3).run(work)


def test_what_is_carried_waits_for_a_gradient_that_is_finite_and_there() -> None:
    before, _ = train(2, CODECS["top-k"], average=True)

    def work(rank) -> None:
        reducer = Reducer(make_plan(None, 1), rank, name="test")
        residuals.restore(reducer, saved(before))
        waiting = {index: variable.numpy() for index, variable in reducer.carried.items()}
        gradients = tensors_of(0, 0)
        reducer.reduce([tf.fill(SHAPES[0], np.inf), *gradients[1:]])
        for index, variable in reducer.carried.items():
            np.testing.assert_array_equal(variable.numpy(), waiting[index])
        rows = tf.IndexedSlices(tf.ones((2, 33)), tf.constant([3, 60]), tf.constant([64, 33]))
        sent = reducer.reduce([None, gradients[1], rows, *gradients[3:]]).gradients
        assert sent[0] is None
        np.testing.assert_array_equal(reducer.carried[0].numpy(), waiting[0])
        assert isinstance(sent[2], tf.IndexedSlices)
        np.testing.assert_array_equal(reducer.carried[2].numpy(), 0)
        expected = waiting[2] + tf.convert_to_tensor(rows).numpy()
        np.testing.assert_allclose(tf.convert_to_tensor(sent[2]).numpy(), expected, rtol=1e-6)

    LocalCollective(1).run(work)


def test_a_narrow_gradient_keeps_what_is_rounded_off() -> None:
    from gradcomp.feedback import send_carried

    carried = tf.Variable([1e-4, 1.0])
    for dtype, exact in ((tf.float16, False), (tf.float32, True), (tf.float64, True)):
        gradient = tf.constant([1.0, 2.0], dtype)
        (sent,), [(_, left)] = send_carried([gradient], {0: carried}, tf.constant([True]))
        assert sent.dtype == dtype
        total = tf.cast(sent, tf.float64) + tf.cast(left, tf.float64)
        np.testing.assert_allclose(total, [1.0001, 3.0], atol=1e-7)
        assert bool(left[0] == 0) == exact or dtype == tf.float32


def test_a_compiled_step_refuses_what_it_cannot_take_up() -> None:
    before, _ = train(2, CODECS["top-k"], average=True)

    def work(rank) -> None:
        reducer = Reducer(make_plan(CODECS["top-k"], 1), rank, name="test")
        tf.function(lambda: reducer.reduce(tensors_of(0, 0)).gradients)()
        with pytest.raises(gc.StateError, match="before the first step"):
            residuals.restore(reducer, saved(before))

    LocalCollective(1).run(work)


def test_another_shape_or_operation_raises_and_another_path_warns() -> None:
    before, _ = train(1, None, average=True)
    snapshots = saved(before)
    description = snapshots[0].description

    def altered(**changes) -> dict[int, residuals.Snapshot]:
        return {0: snapshots[0]._replace(description={**description, **changes})}

    def work(rank) -> None:
        reducer = Reducer(make_plan(None, 1), rank, name="test")
        variables = description["variables"]
        other = [*variables[:-1], {**variables[-1], "shape": [258]}]
        with pytest.raises(gc.StateError, match=r"layer_5/kernel with shape \(258,\), and now"):
            residuals.restore(reducer, altered(variables=other))
        with pytest.raises(gc.StateError, match="5 variables and test has 6"):
            residuals.restore(reducer, altered(variables=variables[1:]))
        residuals.restore(reducer, altered(average=False))  # to one process it is all the same
        other = [*variables[:-1], {**variables[-1], "path": "net/last"}]
        with pytest.warns(UserWarning, match="net/last is now layer_5/kernel"):
            residuals.restore(reducer, altered(variables=other))

    def among_two(rank) -> None:
        reducer = Reducer(make_plan(None, 2), rank, name="test")
        with pytest.raises(gc.StateError, match="op=Sum and now has op=Average"):
            residuals.restore(reducer, altered(average=False))

    LocalCollective(1).run(work)
    LocalCollective(2).run(among_two)
