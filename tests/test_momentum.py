"""Momentum correction's state across numbers of ranks and codecs, and what it takes from an SGD."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from invariants import SHAPES, make_plan, tensors_of
from test_residuals import saved

import gradcomp as gc
from gradcomp import residuals
from gradcomp.collective import LocalCollective
from gradcomp.momentum import Momentum, take_from
from gradcomp.reducer import Reducer

pytestmark = pytest.mark.filterwarnings("ignore:there is one process only")

MOMENTUM = Momentum(0.9)


def trained(size: int, codec, average: bool) -> list[Reducer]:
    def work(rank) -> Reducer:
        reducer = Reducer(
            make_plan(codec, size), rank, average=average, momentum=MOMENTUM, name="test"
        )
        for step in range(3):
            reducer.reduce(tensors_of(rank.rank, step))
        return reducer

    return LocalCollective(size).run(work)


def total(reducers: list[Reducer], what: str) -> list[np.ndarray]:
    """What all ranks' velocities, or residuals, are worth in the reduced gradient."""
    share = 1 / len(reducers) if reducers[0].average else 1.0
    kept = [
        r.velocities if what == "velocities" else {**r.residuals, **r.carried} for r in reducers
    ]
    return [
        share * sum(k[i].numpy().astype(np.float64) if i in k else np.zeros(s) for k in kept)
        for i, s in enumerate(SHAPES)
    ]


@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2), (3, 3), (3, 1), (1, 2)])
def test_another_number_of_ranks_keeps_what_velocities_are_worth(old, new, average) -> None:
    codec = gc.TopK(density=0.05)
    before = trained(old, codec, average)
    snapshots = saved(before)

    def work(rank) -> Reducer:
        reducer = Reducer(
            make_plan(codec, new), rank, average=average, momentum=MOMENTUM, name="test"
        )
        residuals.restore(reducer, snapshots)
        return reducer

    after = LocalCollective(new).run(work)
    for what in ("velocities", "residuals"):
        for ours, theirs in zip(total(after, what), total(before, what), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    if old == new:
        for ours, theirs in zip(after, before, strict=True):
            for i in range(len(SHAPES)):
                mine, saved_ = ours.velocities[i].numpy(), theirs.velocities[i].numpy()
                assert mine.tobytes() == saved_.tobytes()


@pytest.mark.parametrize("size", [1, 3])
def test_residuals_that_are_sent_whole_gather_no_momentum(size) -> None:
    """Where nothing is compressed any more, v is sent once, and u alone goes on."""
    before = trained(3, gc.TopK(density=0.05), average=True)
    snapshots = saved(before)
    u, v = total(before, "velocities"), total(before, "residuals")

    def work(rank) -> list[list[np.ndarray]]:
        reducer = Reducer(make_plan(None, size), rank, momentum=MOMENTUM, name="test")
        residuals.restore(reducer, snapshots)
        zeros = [tf.zeros(s) for s in SHAPES]
        return [[r.numpy() for r in reducer.reduce(zeros).gradients] for _ in range(2)]

    first, second = LocalCollective(size).run(work)[0]
    for i in range(len(SHAPES)):
        np.testing.assert_allclose(first[i], 0.9 * u[i] + v[i], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(second[i], 0.81 * u[i], rtol=1e-4, atol=1e-5)


def test_velocities_that_nobody_wants_are_told() -> None:
    snapshots = saved(trained(2, gc.TopK(density=0.05), average=True))

    def work(rank) -> None:
        residuals.restore(Reducer(make_plan(gc.TopK(0.05), 2), rank, name="test"), snapshots)

    with pytest.warns(UserWarning, match='saved with error_feedback="momentum".*is lost'):
        LocalCollective(2).run(work)


def test_half_precision_and_double_gradients_come_back_as_such() -> None:
    dtypes = ["float16", "bfloat16", "float64", "float32", "float32", "float32"]
    plan = make_plan(gc.TopK(density=0.5, values=gc.Identity()), 2)
    variables = tuple(
        replace(v, dtype=d, codec=None if d == "float64" else v.codec)
        for v, d in zip(plan.variables, dtypes, strict=True)
    )
    plan = replace(plan, variables=variables, momentum=True)

    def work(rank) -> None:
        reducer = Reducer(plan, rank, momentum=MOMENTUM, name="test")
        given = [tf.cast(g, d) for g, d in zip(tensors_of(0, 0), dtypes, strict=True)]
        reduced = reducer.reduce(given).gradients
        assert [r.dtype.name for r in reduced] == dtypes
        # What overflows only when it is made narrow again is not finite either.
        given[0] = tf.fill((7, 130), tf.constant(65504, tf.float16))
        reducer.reduce(given)
        before = reducer.velocities[2].numpy()
        reduced = reducer.reduce(given).gradients
        assert np.isinf(reduced[0].numpy()).any()
        assert before.any()
        np.testing.assert_array_equal(reducer.velocities[2].numpy(), before)
        kept = [reducer.velocities[i].dtype.name for i in range(len(SHAPES))]
        assert kept == ["float64" if d == "float64" else "float32" for d in dtypes]
        assert plan.residual_bytes == sum(
            v.numpy().nbytes for v in [*reducer.residuals.values(), *reducer.velocities.values()]
        )

    LocalCollective(2).run(work)


def test_one_rank_refuses_sparse_gradients_too() -> None:
    slices = tf.IndexedSlices(tf.ones((1, 130)), tf.constant([0]), tf.constant([7, 130]))

    def work(rank) -> None:
        reducer = Reducer(make_plan(None, 1), rank, momentum=MOMENTUM, name="test")
        with pytest.raises(ValueError, match=r"layer_0/kernel, which is tf\.IndexedSlices"):
            reducer.reduce([slices, *tensors_of(0, 0)[1:]])

    LocalCollective(1).run(work)


def test_ranks_that_disagree_about_the_momentum_are_told() -> None:
    def work(rank) -> None:
        momentum = Momentum(0.9 if rank.rank else 0.8)
        with pytest.raises(gc.MismatchError, match=r"error_feedback.*0\.8.*on rank 0"):
            Reducer(make_plan(None, 2), rank, momentum=momentum, name="test")

    LocalCollective(2).run(work)


def test_it_is_taken_from_the_optimizer() -> None:
    import keras

    sgd = keras.optimizers.SGD(0.5, momentum=0.8, nesterov=True, clipnorm=2.0)
    taken, velocities = take_from(sgd)
    assert taken == Momentum(0.8, nesterov=True, clipnorm=2.0)
    assert velocities is None
    assert sgd.momentum == 0.0
    built = keras.optimizers.SGD(0.5, momentum=0.8)
    v = keras.Variable(np.zeros(3, np.float32))
    built.apply([tf.constant([1.0, 2.0, 4.0])], [v])
    before = len(built.variables)
    _, (velocity,) = take_from(built)
    np.testing.assert_allclose(velocity, [1.0, 2.0, 4.0])
    assert len(built.variables) == before - 1
